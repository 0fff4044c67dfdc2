/** Descriptions of the settings in reading order; the source of docs/reference/settings.md. */
export const settingDescriptions: Readonly<Record<string, string>> = {
  PORT: 'where web listens',
  BASE_URL: "public address; starts every absolute URL and is the tokens' issuer",
  DATA_DIR: 'everything `npm start` keeps',
  PRODUCT_NAME: 'how pages and e-mails name the service',
  OUTBOUND_ALLOW:
    'comma lists of hosts (`example.org`, `*.example.org`, `10.0.0.0/8`, each with a `:port` or without): only those of the first are called, those of the second never, by bots, hooks, key and provider look-ups, mail attachments and downloads alike',
  OUTBOUND_DENY:
    'comma lists of hosts (`example.org`, `*.example.org`, `10.0.0.0/8`, each with a `:port` or without): only those of the first are called, those of the second never, by bots, hooks, key and provider look-ups, mail attachments and downloads alike',
  DATABASE_URL:
    '`postgres://…`; `?sslmode=verify-full` for TLS with a certificate that is checked; `npm start` brings a local one',
  DATABASE_DIRECT_URL:
    "set where `DATABASE_URL` is a pooler's: the address of PostgreSQL itself, for the release step and for exports",
  DATABASE_READ_URL:
    'comma list of replicas (streaming replication) that reads may go to; connections of their own, `DATABASE_POOL` for each process and replica',
  DATABASE_TLS_INSECURE:
    'TLS, with whatever certificate PostgreSQL has, as hosted ones have certificates of their own; an `sslmode` in the URL goes first',
  DATABASE_POOL:
    'connections of a process, at least 5; as many again for the thread of web that answers large bodies',
  REDIS_URL:
    '`redis://…`, `rediss://…`, or `redis-sentinel://user:password@host:26379,host:26379/0#name` (`rediss-sentinel` over TLS); one server holds all keys, so Redis Cluster is refused, and so is a `maxmemory-policy` other than `noeviction`; `npm start` brings a local one',
  REDIS_TLS_INSECURE: 'accept the self-signed certificate of a hosted Redis',
  REDIS_TIMEOUT_MS: 'how long a request waits for an answer of Redis before it fails',
  STORAGE_URL:
    'where exports and binaries go: `file:<folder>`, or `s3://bucket/prefix?region=…&endpoint=…&forcePathStyle=true&timeout=<seconds>` with keys in the usual `AWS_*` variables; `&sse=AES256` or `&sse=aws:kms&sseKmsKeyId=…` has the bucket encrypt what it stores; with `&presigned=true` manifests of exports name addresses in the bucket, good for five minutes and without a token, so `endpoint` must be one that callers reach; unfinished uploads are aborted after a day, which takes the right `s3:ListBucketMultipartUploads`',
  SUPER_ADMIN_EMAIL: 'the first user',
  SUPER_ADMIN_PASSWORD: 'random by `npm start`',
  SUPER_ADMIN_CLIENT_ID:
    'the first client: a UUID, which the first release makes and prints where it is not set; `npm start` makes one',
  SUPER_ADMIN_CLIENT_SECRET: 'its secret; random by `npm start`',
  SIGNING_KEY:
    'private JWK (ES256), or a list of them: the first signs, all verify; made once and kept in the database where it is not set; an RSA key in it signs the ID tokens of clients with `idTokenSignedResponseAlg` `RS256`',
  SMTP_URL:
    '`smtp://user:password@host:port`; TLS is a must unless `?ignoreTLS=true`; without it mails stay in the outbox, which super admins read',
  MAIL_FROM: 'sender of mails',
  MAIL_APPROVED_SENDERS: 'comma list of addresses that clients may send from',
  APP_URL: 'where links in e-mails point',
  LOG_LEVEL:
    '`fatal`, `error`, `warn`, `info`, `debug`, `trace` or `silent`; JSON lines on standard output: one for each request, with its trace, client, bot and project, and a warning for each run that fails',
  CORS_ORIGINS: 'comma list',
  FRAME_ANCESTORS:
    'comma list of origins (`https://app.example.org`, `https://*.example.org`) whose pages may show attachments below `/storage` in a frame',
  TRUST_PROXY: "believe `X-Forwarded-*`; `true` behind a platform's router",
  MAX_BODY_BYTES: 'largest request body',
  MAX_BUNDLE_BYTES: 'largest batch or transaction, and most that its entries read',
  LARGE_BODY_BYTES: 'larger bodies are parsed and answered in a thread of web',
  MAX_BATCH_ENTRIES: 'most entries of a batch or transaction',
  MAX_TRANSACTION_WRITES: 'most entries of a transaction that write',
  BATCH_TIMEOUT_MS:
    'entries of a batch that have not begun by then answer 504, a transaction is rolled back with 504; accepted asynchronous ones have no such limit',
  MAX_UPLOAD_BYTES: 'largest content of a Binary',
  RATE_LIMIT_PER_MINUTE: 'requests per address; `0` switches off',
  AUTH_RATE_LIMIT_PER_MINUTE: 'the same for what tries a password, code or secret',
  PASSWORD_QUEUE_DEPTH:
    'sign-ins that wait for each password that is hashed at a time; those beyond answer 429',
  REQUEST_IDLE_SECONDS:
    'a request whose body brings less than 16 KiB for so long is answered 408; a web socket without a token is closed then',
  ANONYMOUS_SOCKETS_MAX: 'web sockets of one address that have shown no token yet',
  EXECUTE_WAIT_MS: 'how long `$execute` holds the request before it answers 202 with a status URL',
  EXECUTE_DEADLINE: '`fail`: answer a timeout error instead of that 202',
  BOT_TIMEOUT_MS: 'default wall time of a run',
  BOT_TIMEOUT_MAX_MS: 'largest wall time of a run',
  BOT_MEMORY_MB: 'memory of a run',
  BOT_RESULT_MAX_BYTES: 'largest result of a run',
  BOT_LOG_MAX_BYTES: 'largest log of a run',
  BOT_INPUT_ARCHIVE:
    'a project whose `setting` has `BOT_INPUT_ARCHIVE` true has the inputs of its bots kept for a week, encrypted, for `Bot/:id/$replay`',
  PRE_COMMIT_BOTS:
    'a project whose `setting` has `preCommitSubscriptionsEnabled` true has bots asked about writes before they are made',
  WORKER_CONCURRENCY:
    'runs of a queue that use the processor at a time in a worker; those that wait do not count',
  BOT_CONCURRENCY:
    'runs of a bot at a time over all workers, where the bot (`bot-maxConcurrency`) says nothing else; `0`: as many as the memory of the workers has room for',
  PROJECT_CONCURRENCY: 'the same for a project (`botConcurrency`)',
  WORKER_MEMORY_MB:
    "memory for a worker and the processes its bots run in: each project that calls bots has one, 13 MB and more; with more such projects than fit, the idle one that calls least often makes room. What runs is not ended for it; by default the container's limit, else half of the machine's memory, 8192 at most",
  WORKER_QUEUES:
    'comma list of `bots-sync`, `bots-async`, `requests`, `schedules`, `export`, `import`, `change`, `mail`, `upkeep`',
  QUEUE_BACKLOG_MAX: 'waiting runs of a project beyond which `$execute` answers 429',
  EXPORT_TTL_HOURS: 'how long the files of an export are kept',
  EXPORT_COMPRESSION_LEVEL:
    'how exported files are packed in the storage, `0` to `9`: `0` packs nothing and is fastest to a fast disk, `1` takes a ninth of the room, `9` the least room and the most time',
  DEFAULT_PROJECT_FEATURES: 'features of a new project',
  OPEN_PATIENT_ACCESS:
    'patients whose membership names no policy may read and write everything in their project',
  METRICS_TOKEN:
    'bearer token that `/metrics` asks everybody for; without it only this machine may ask',
  REGISTER_ENABLED: 'anybody may register and make a project',
  PASSWORD_CHECK:
    'new passwords are looked up in a built-in list of common ones; `remote`: also in a breach database, by the first 5 digits of their SHA-1; `off`',
  PASSWORD_CHECK_URL: 'the breach database of `remote`',
  CLI_CLIENT_ENABLED: 'the command line tool signs in as client `medplum-cli`',
  CONSOLE_ENABLED:
    '`/console` has pages for the people of a project; not where `APP_URL` names another app',
  INTROSPECTION_ENABLED:
    'members of a project with the feature `graphql-introspection` may ask GraphQL for its types; `false`: its admins only',
  GRAPHQL_AUDIT:
    "where the AuditEvents of GraphQL's reads go, one for each statement: `log`, without what was searched for, or `resource`, stored in the project",
  INTROSPECTION_OPEN: '`/oauth2/introspect` answers without credentials',
  AUTO_DOWNLOAD:
    'attachments with an `https` address elsewhere are fetched (up to 100 MB) and kept as Binaries; `Project.setting`: `autoDownloadEnabled` false, and comma lists `autoDownloadAllowedUrlPrefixes`, `autoDownloadIgnoredUrlPrefixes`',
  GOOGLE_CLIENT_ID:
    "people sign in by Google; a Project's sites have clients of their own (`Project.site.googleClientId`)",
  GOOGLE_JWKS_URL: "where the keys of Google's ID tokens are",
  RECAPTCHA_SITE_KEY: 'registrations and resets are verified by reCAPTCHA',
  RECAPTCHA_SECRET: 'its secret',
  RECAPTCHA_URL: 'the service that verifies',
  BOT_FETCH:
    'which addresses bots may call: `off`, `public` or `all`; `public`, but `all` on a loopback `BASE_URL`',
  HOOK_TARGETS:
    'where Subscriptions may send to, and where keys of clients and identity providers and inputs of imports come from; `public`, but `all` on a loopback `BASE_URL`',
}
