-- Whose everything is: the name of the API key that it came with, empty without one, and the member. And what a job
-- needs to wait in another gateway as it did in this one.

ALTER TABLE jobs ADD COLUMN key_name TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN priority_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN body_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN max_wait_s REAL;
UPDATE jobs SET body_bytes = coalesce((SELECT bytes FROM bodies WHERE bodies.seq = jobs.seq), 0);

DROP INDEX jobs_by_key;
CREATE UNIQUE INDEX jobs_by_key ON jobs (key_name, member, key) WHERE key IS NOT NULL;

-- What belongs to a job or a batch that is still known is its member's; of the rest no member is known.

-- Two owners' jobs may have one id at a server, and may have made the same file: each has a row of its own, by its job
-- here. Of a job that was run again only the last attempt is known.
ALTER TABLE kept_answers RENAME TO old_kept_answers;
ALTER TABLE remembered RENAME TO old_remembered;

CREATE TABLE remembered (
    model TEXT NOT NULL,
    server_id TEXT NOT NULL,
    job_id TEXT NOT NULL UNIQUE,
    member TEXT NOT NULL,
    key_name TEXT NOT NULL,
    completion TEXT NOT NULL,
    created_at REAL NOT NULL,
    stage TEXT NOT NULL,
    last BLOB NOT NULL,
    ended_at REAL,
    expires_at REAL
) STRICT;

INSERT INTO remembered (
    rowid, model, server_id, job_id, member, key_name, completion, created_at, stage, last, ended_at, expires_at
)
SELECT
    max(rowid), model, server_id, job_id, coalesce((SELECT jobs.member FROM jobs WHERE jobs.id = job_id), ''), '',
    completion, created_at, stage, last, ended_at, expires_at
FROM old_remembered GROUP BY job_id;

CREATE TABLE kept_answers (
    job_id TEXT NOT NULL REFERENCES remembered (job_id) ON DELETE CASCADE,
    model TEXT NOT NULL,
    target TEXT NOT NULL,
    status INTEGER NOT NULL,
    reason TEXT NOT NULL,
    headers TEXT NOT NULL,
    file TEXT NOT NULL UNIQUE,  -- its name in the folder kept
    bytes INTEGER NOT NULL,
    PRIMARY KEY (job_id, target)
) STRICT;

INSERT INTO kept_answers (rowid, job_id, model, target, status, reason, headers, file, bytes)
SELECT old.rowid, job_id, model, target, status, reason, headers, file, bytes
FROM old_kept_answers AS old JOIN remembered USING (model, server_id);

DROP TABLE old_kept_answers;
DROP TABLE old_remembered;
CREATE INDEX remembered_by_id ON remembered (server_id);
CREATE INDEX kept_answers_by_target ON kept_answers (model, target);

ALTER TABLE batches ADD COLUMN member TEXT NOT NULL DEFAULT '';
ALTER TABLE batches ADD COLUMN key_name TEXT NOT NULL DEFAULT '';
UPDATE batches SET member = coalesce(json_extract(data, '$.sender.member'), '');

ALTER TABLE files ADD COLUMN member TEXT NOT NULL DEFAULT '';
ALTER TABLE files ADD COLUMN key_name TEXT NOT NULL DEFAULT '';
UPDATE files SET member = found.member
FROM (
    SELECT id, member, min(number) FROM (
        SELECT json_extract(data, '$.input_file_id') AS id, member, rowid AS number FROM batches
        UNION ALL SELECT json_extract(data, '$.future_output_file_id'), member, rowid FROM batches
        UNION ALL SELECT json_extract(data, '$.future_error_file_id'), member, rowid FROM batches
    ) GROUP BY id  -- the first batch that it was for
) AS found
WHERE files.id = found.id;
