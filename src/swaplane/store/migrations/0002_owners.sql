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

ALTER TABLE remembered ADD COLUMN member TEXT NOT NULL DEFAULT '';
ALTER TABLE remembered ADD COLUMN key_name TEXT NOT NULL DEFAULT '';
UPDATE remembered SET member = coalesce((SELECT jobs.member FROM jobs WHERE jobs.id = remembered.job_id), '');

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
