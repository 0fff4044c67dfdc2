/** Descriptions of the settings in reading order; the source of docs/reference/settings.md. */
export const settingDescriptions: Readonly<Record<string, string>> = {
  PORT: 'port that web listens on',
  BASE_URL: 'public address: the start of every absolute URL, and the issuer of tokens',
  DATA_DIR: 'folder in which `npm start` stores its data',
  PRODUCT_NAME: 'name of the service on pages and in e-mails',
  OUTBOUND_ALLOW:
    'comma list of hosts (`example.org`, `*.example.org`, `10.0.0.0/8`, each optionally with a `:port`): outgoing requests go only to these. Applies to bots, hooks, key and provider look-ups, mail attachments and downloads',
  OUTBOUND_DENY: 'comma list in the same form: outgoing requests never go to these hosts',
  DATABASE_URL:
    '`postgres://…`; add `?sslmode=verify-full` for TLS with certificate verification; `npm start` provides a local one',
  DATABASE_DIRECT_URL:
    'address of PostgreSQL itself if `DATABASE_URL` is the address of a pooler; the release step and exports use it',
  DATABASE_READ_URL:
    'comma list of replicas (streaming replication) for reads; each process opens `DATABASE_POOL` connections to each replica',
  DATABASE_TLS_INSECURE:
    'TLS with any certificate, since hosted databases use private ones; an `sslmode` in the URL takes precedence',
  DATABASE_POOL:
    'connections of a process, at least 5; as many again for the thread of web that answers large bodies',
  REDIS_URL:
    '`redis://…`, `rediss://…`, or `redis-sentinel://user:password@host:26379,host:26379/0#name` (`rediss-sentinel` for TLS); one server must hold all keys, with `maxmemory-policy noeviction`, so Redis Cluster and other policies are rejected; `npm start` provides a local one',
  REDIS_TLS_INSECURE: 'accept the self-signed certificate of a hosted Redis',
  REDIS_TIMEOUT_MS: 'time in which Redis must respond before a request fails',
  STORAGE_URL:
    'storage of exports and Binaries: `file:<folder>`, or `s3://bucket/prefix?region=…&endpoint=…&forcePathStyle=true&timeout=<seconds>` with keys in the usual `AWS_*` variables. `&sse=AES256` or `&sse=aws:kms&sseKmsKeyId=…` makes the bucket encrypt its contents. `&presigned=true` makes export manifests link to the bucket, with links that are valid for five minutes without a token, so clients must be able to reach `endpoint`. Unfinished uploads are aborted after a day, which needs the permission `s3:ListBucketMultipartUploads`',
  SUPER_ADMIN_EMAIL: 'e-mail address of the first user',
  SUPER_ADMIN_PASSWORD: 'password of the first user; `npm start` generates one',
  SUPER_ADMIN_CLIENT_ID:
    'id of the first client; by default the first release step generates and prints one',
  SUPER_ADMIN_CLIENT_SECRET: 'secret of the first client; `npm start` generates one',
  SIGNING_KEY:
    'private JWK (ES256), or a list of them: the first signs, all verify. By default a key is generated once and kept in the database. An RSA key in the list signs the ID tokens of clients whose `idTokenSignedResponseAlg` is `RS256`',
  SMTP_URL:
    '`smtp://user:password@host:port`; TLS is required unless `?ignoreTLS=true`. Without this setting, mails stay in the outbox, where super admins can read them',
  MAIL_FROM: 'sender of mails',
  MAIL_APPROVED_SENDERS: 'comma list of other addresses that clients may send from',
  APP_URL: 'address that links in e-mails lead to',
  LOG_LEVEL:
    'lowest level that is logged, as JSON lines on standard output: one for each request, with its trace, client, bot and project, and a warning for each failed run',
  CORS_ORIGINS: 'comma list of origins whose pages may call the API; `*` for all',
  FRAME_ANCESTORS:
    'comma list of origins (`https://app.example.org`, `https://*.example.org`) whose pages may show attachments below `/storage` in a frame',
  TRUST_PROXY: "trust the headers `X-Forwarded-*`; set `true` behind a platform's router",
  CLIENT_CERTIFICATE_HEADER:
    'request header in which the proxy passes the certificate of a client (mutual TLS), as URL-encoded PEM or as in RFC 9440; the proxy must remove this header from the requests of clients. Without this setting no header is read',
  CLIENT_CERTIFICATE_VERIFIED:
    'set `true` if the proxy passes only certificates that a CA of its list has issued; clients with `tls_client_auth` need this',
  MAX_BODY_BYTES:
    'largest size of the body of a FHIR request or web hook; administration and SCIM accept 256 KiB',
  MAX_BUNDLE_BYTES: 'largest size of a batch or transaction, and of all that its entries read',
  LARGE_BODY_BYTES: 'larger bodies are processed in a separate thread of web',
  MAX_BATCH_ENTRIES: 'largest number of entries in a batch or transaction',
  MAX_TRANSACTION_WRITES: 'largest number of writing entries in a transaction',
  BATCH_TIMEOUT_MS:
    'after this time, entries of a batch that have not started return 504, and a transaction is rolled back with 504; asynchronous bundles have no limit',
  MAX_UPLOAD_BYTES: 'largest size of the content of a Binary',
  RATE_LIMIT_PER_MINUTE: 'requests per address and minute; `0` disables the limit',
  AUTH_RATE_LIMIT_PER_MINUTE: 'attempts per address and minute with a password, code or secret',
  PASSWORD_QUEUE_DEPTH:
    'sign-ins that may wait for each password that is being hashed; further ones return 429',
  REQUEST_IDLE_SECONDS:
    'a request whose body delivers less than 16 KiB in this time gets 408; a connection whose client takes nothing of a response for it is cut; a web socket without a token is closed after it',
  ANONYMOUS_SOCKETS_MAX: 'web sockets per address that have not sent a token yet',
  EXECUTE_WAIT_MS:
    'time after which `$execute` returns 202 with a status URL if the run has not ended',
  EXECUTE_DEADLINE: '`fail` returns a timeout error instead of that 202',
  BOT_TIMEOUT_MS: 'default wall time of a run',
  BOT_TIMEOUT_MAX_MS: 'longest wall time of a run',
  BOT_MEMORY_MB: 'memory of a run',
  BOT_RESULT_MAX_BYTES: 'largest result of a run',
  BOT_LOG_MAX_BYTES: 'largest log of a run',
  BOT_INPUT_ARCHIVE:
    'let projects whose `setting` has `BOT_INPUT_ARCHIVE` keep the inputs and answers of their bots, and the responses to their fetches, for a week, encrypted, for `Bot/:id/$replay` and `$dry-run`',
  PRE_COMMIT_BOTS:
    'let projects whose `setting` has `preCommitSubscriptionsEnabled` run bots before writes',
  WORKER_CONCURRENCY:
    'runs of a queue that may use the processor of a worker at the same time; waiting runs do not count',
  BOT_CONCURRENCY:
    'concurrent runs of a bot on all workers, unless the bot has `bot-maxConcurrency`; `0`: only the memory of the workers limits them',
  PROJECT_CONCURRENCY:
    'concurrent runs of a project, unless the project has `botConcurrency`; `0`: only the memory of the workers limits them',
  WEB_MEMORY_MB:
    'memory for a web process; it determines the sizes of its caches, and how many large bundles are processed at a time, one for each 256 MB: the others wait. Default: as for `WORKER_MEMORY_MB`',
  WORKER_MEMORY_MB:
    "memory for a worker and its executors; it determines the sizes of the caches. Each project that calls bots has an executor of 13 MB or more; if no more fit, the idle one that is called least often is stopped. Running bots are never stopped for it. Default: the container's limit, otherwise half of the machine's memory, at most 8192",
  WORKER_QUEUES: 'queues that this worker processes',
  QUEUE_BACKLOG_MAX: 'waiting runs of a project above which `$execute` returns 429',
  EXPORT_TTL_HOURS: 'time for which the files of an export are kept',
  EXPORT_COMPRESSION_LEVEL:
    'compression of exported files in the storage, `0` (none, fastest on a fast disk) to `9` (smallest, slowest); `1` reduces them to a ninth',
  DEFAULT_PROJECT_FEATURES: 'features of a new project',
  OPEN_PATIENT_ACCESS:
    'patients whose membership has no policy can read and write everything in their project',
  NEW_PROJECT_POLICIES:
    'a new project gets access policies for administrators, practitioners, patients and related persons, for invitations that name none',
  METRICS_TOKEN:
    'bearer token that `/metrics` requires; without it, `/metrics` responds only to this machine',
  REGISTER_ENABLED: 'anyone may register and create a project',
  PASSWORD_CHECK:
    '`list` compares new passwords with a built-in list of common ones; `remote` also asks a breach database, by the first 5 digits of their SHA-1; `off` disables both',
  PASSWORD_CHECK_URL: 'breach database for `remote`',
  CLI_CLIENT_ENABLED: "allow Medplum's command line tool to sign in as client `medplum-cli`",
  CONSOLE_ENABLED:
    'serve the console at `/console`; it is also disabled if `APP_URL` names another app',
  INTROSPECTION_ENABLED:
    'allow GraphQL introspection to members of a project with the feature `graphql-introspection`; `false`: only to its administrators',
  GRAPHQL_AUDIT:
    'destination of the AuditEvents of GraphQL reads, one for each statement: `log`, without the search criteria, or `resource`, stored in the project',
  INTROSPECTION_OPEN: '`/oauth2/introspect` responds without client credentials',
  AUTO_DOWNLOAD:
    'download attachments from `https` addresses (up to 100 MB) and keep them as Binaries, for each project one resource at a time and each for at most 10 minutes, three times; a project can restrict it in its `setting` by `autoDownloadEnabled` false and the comma lists `autoDownloadAllowedUrlPrefixes` and `autoDownloadIgnoredUrlPrefixes`',
  GOOGLE_CLIENT_ID:
    "client id for Google sign-in; a Project's sites have separate ones (`Project.site.googleClientId`)",
  GOOGLE_JWKS_URL: "address of the keys of Google's ID tokens",
  RECAPTCHA_SITE_KEY:
    'site key of reCAPTCHA, which then verifies registrations and password resets',
  RECAPTCHA_SECRET: 'secret key of reCAPTCHA',
  RECAPTCHA_URL: 'verification service of reCAPTCHA',
  BOT_FETCH:
    'addresses that bots can call: `off` for none, `public`, or `all`, private networks included. Default: `public`, or `all` if `BASE_URL` is a loopback address',
  HOOK_TARGETS:
    'addresses for the deliveries of Subscriptions, the keys of clients and identity providers, and the inputs of imports: `public` or `all`, as for `BOT_FETCH`',
}
