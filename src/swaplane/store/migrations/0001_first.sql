-- Times are unix seconds. Headers are a JSON list of [name, value], each byte a character (latin-1).

CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice, so it is the order of acceptance
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    model TEXT NOT NULL,
    member TEXT NOT NULL,
    priority INTEGER NOT NULL,
    band TEXT NOT NULL,
    label TEXT NOT NULL,
    method TEXT NOT NULL,
    target TEXT NOT NULL,
    headers TEXT NOT NULL,
    client TEXT NOT NULL,
    submitted_at REAL NOT NULL,
    key TEXT,
    fingerprint TEXT NOT NULL,
    webhook TEXT,
    webhook_at REAL,
    webhook_tries INTEGER NOT NULL,
    batch TEXT,
    line INTEGER,
    custom_id TEXT,
    state TEXT NOT NULL CHECK (state IN ('waiting', 'running', 'ended')),
    attempts INTEGER NOT NULL,
    server_id TEXT,
    outcome TEXT,
    lane TEXT NOT NULL,
    ran INTEGER NOT NULL,
    waited_s REAL,
    run_s REAL,
    ended_at REAL,
    expires_at REAL,
    status INTEGER,
    reason TEXT NOT NULL,
    answer_headers TEXT,
    answer_bytes INTEGER
) STRICT;

CREATE UNIQUE INDEX jobs_by_key ON jobs (member, key) WHERE key IS NOT NULL;
CREATE INDEX jobs_open ON jobs (seq) WHERE state <> 'ended';
CREATE INDEX jobs_by_line ON jobs (batch, line) WHERE batch IS NOT NULL;
CREATE INDEX jobs_by_webhook ON jobs (webhook_at) WHERE webhook_at IS NOT NULL;
CREATE INDEX jobs_by_expiry ON jobs (expires_at) WHERE expires_at IS NOT NULL;

-- Apart from the jobs, so that reading those does not read these. Either `file` or `data` is there.
CREATE TABLE bodies (
    seq INTEGER PRIMARY KEY REFERENCES jobs (seq) ON DELETE CASCADE,
    bytes INTEGER NOT NULL,
    file TEXT,  -- its name in the folder bodies
    data BLOB
) STRICT;

CREATE UNIQUE INDEX bodies_by_file ON bodies (file) WHERE file IS NOT NULL;

-- Jobs as model servers know them. The newest row has the highest rowid.
CREATE TABLE remembered (
    model TEXT NOT NULL,
    server_id TEXT NOT NULL,
    job_id TEXT NOT NULL,
    completion TEXT NOT NULL,
    created_at REAL NOT NULL,
    stage TEXT NOT NULL,
    last BLOB NOT NULL,
    ended_at REAL,
    expires_at REAL,
    UNIQUE (model, server_id)
) STRICT;

CREATE INDEX remembered_by_id ON remembered (server_id);
CREATE INDEX remembered_by_job ON remembered (job_id);

CREATE TABLE kept_answers (
    model TEXT NOT NULL,
    target TEXT NOT NULL,
    server_id TEXT NOT NULL,
    status INTEGER NOT NULL,
    reason TEXT NOT NULL,
    headers TEXT NOT NULL,
    file TEXT NOT NULL UNIQUE,  -- its name in the folder kept
    bytes INTEGER NOT NULL,
    PRIMARY KEY (model, target),
    FOREIGN KEY (model, server_id) REFERENCES remembered (model, server_id) ON DELETE CASCADE
) STRICT;

CREATE INDEX kept_answers_by_id ON kept_answers (model, server_id);

-- Each file is in the folder files, under its id.
CREATE TABLE files (
    id TEXT NOT NULL UNIQUE,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL
) STRICT;

CREATE TABLE batches (
    id TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    data TEXT NOT NULL,
    open INTEGER NOT NULL,
    expires_at REAL
) STRICT;

CREATE INDEX batches_open ON batches (open) WHERE open;

-- One row, changed to find out whether changes reach the disk.
CREATE TABLE probes (count INTEGER NOT NULL) STRICT;
INSERT INTO probes VALUES (0);
