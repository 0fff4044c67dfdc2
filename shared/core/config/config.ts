/**
 * Every setting of the service: name, default, meaning. Read once at start; all complaints are
 * printed together. `meanings.ts` says what each is for.
 */

import { totalmem } from 'node:os'
import program from '../../../package.json' with { type: 'json' }
import type { Outbound } from './outbound.ts'
import { Reader, type Setting } from './reader.ts'

type PasswordCheck = 'off' | 'list' | 'remote'

export interface Config {
  readonly port: number
  /** Ends in a slash; every absolute URL of an answer starts with it. */
  readonly baseUrl: string
  readonly databaseUrl: string
  /** Given: the other address is a pooler's, and this one PostgreSQL's own. */
  readonly databaseDirectUrl: string | undefined
  /** Replicas of it that reads may go to. */
  readonly databaseReadUrls: readonly string[]
  readonly databaseTlsInsecure: boolean
  readonly databasePool: number
  readonly redisUrl: string
  readonly redisTlsInsecure: boolean
  /** How long a request waits for an answer of Redis. */
  readonly redisTimeoutMs: number
  readonly storageUrl: string
  readonly dataDir: string
  readonly superAdminEmail: string
  readonly superAdminPassword: string | undefined
  readonly superAdminClientId: string | undefined
  readonly superAdminClientSecret: string | undefined
  /** One private JWK or an array of them, as text. */
  readonly signingKey: string | undefined
  readonly smtpUrl: string | undefined
  /** Sender of every mail that names no approved one. */
  readonly mailFrom: string
  /** Addresses that clients may send from. */
  readonly mailApprovedSenders: readonly string[]
  readonly appUrl: string
  readonly logLevel: string
  readonly corsOrigins: readonly string[]
  /** Pages that may show signed attachments in a frame. */
  readonly frameAncestors: readonly string[]
  readonly trustProxy: boolean
  readonly maxBodyBytes: number
  readonly maxBundleBytes: number
  /** Requests with larger bodies are answered in a thread of web. */
  readonly largeBodyBytes: number
  readonly maxBatchEntries: number
  readonly maxTransactionWrites: number
  readonly batchTimeoutMs: number
  readonly maxUploadBytes: number
  readonly rateLimitPerMinute: number
  readonly authRateLimitPerMinute: number
  /** Sign-ins that wait for each password that is hashed at a time. */
  readonly passwordQueueDepth: number
  /** A request whose body makes no progress for so long ends, and so does a web socket without a token. */
  readonly requestIdleSeconds: number
  /** Web sockets of one address that have shown no token yet. */
  readonly anonymousSocketsMax: number
  readonly executeWaitMs: number
  readonly executeDeadline: 'accept' | 'fail'
  readonly botTimeoutMs: number
  readonly botTimeoutMaxMs: number
  readonly botMemoryMb: number
  readonly botResultMaxBytes: number
  readonly botLogMaxBytes: number
  readonly botFetch: Outbound
  /** Projects may have the inputs of their bots kept, to run them again. */
  readonly botInputArchive: boolean
  /** Bots may be asked about a write before it is made, where their Project wants it. */
  readonly preCommitBots: boolean
  readonly workerConcurrency: number
  /** Runs of a bot, and of a project, at a time over all workers; 0: as many as there is room for. */
  readonly botConcurrency: number
  readonly projectConcurrency: number
  /** For a worker and its executors: how many of them there are at a time. */
  readonly workerMemoryMb: number
  readonly workerQueues: readonly string[]
  readonly queueBacklogMax: number
  readonly exportTtlHours: number
  readonly exportCompressionLevel: number
  readonly defaultProjectFeatures: readonly string[]
  readonly openPatientAccess: boolean
  readonly metricsToken: string | undefined
  readonly productName: string
  /** Anybody may make a user, and a project for it. */
  readonly registerEnabled: boolean
  /** The list that a new password is looked up in. */
  readonly passwordCheck: PasswordCheck
  /** The address of the breach database; the first 5 digits of a SHA-1 are appended. */
  readonly passwordCheckUrl: string
  /** The client of the command line tool is there without being stored. */
  readonly cliClientEnabled: boolean
  /** `/console` is there: pages for the people of a Project. */
  readonly consoleEnabled: boolean
  /** GraphQL shows its types to others than admins, too, where their Project has the feature. */
  readonly introspectionEnabled: boolean
  /** Where the AuditEvents of what GraphQL reads go. */
  readonly graphqlAudit: 'log' | 'resource'
  /** `/oauth2/introspect` answers callers it does not know. */
  readonly introspectionOpen: boolean
  /** Where keys of clients and identity providers, and inputs of imports, may be fetched from. */
  readonly hookTargets: Outbound
  /** External attachments are fetched into the service, unless their Project has it otherwise. */
  readonly autoDownload: boolean
  /** Google client of people who sign in; Projects have their own in `site`. */
  readonly googleClientId: string | undefined
  /** Where the keys of Google's ID tokens are. */
  readonly googleJwksUrl: string
  readonly recaptchaSiteKey: string | undefined
  readonly recaptchaSecret: string | undefined
  /** The service that verifies the tokens. */
  readonly recaptchaUrl: string
  /** Sentences about variables that look like misspelt settings, for whoever starts the process. */
  readonly warnings: readonly string[]
}

const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent']
export const QUEUE_NAMES = [
  'bots-sync',
  'bots-async',
  'requests',
  'schedules',
  'export',
  'import',
  'change',
  'mail',
  'upkeep',
] as const

/** The features a Project may have; from `transaction-bundles` on they are names that clients know and nothing here depends on. */
const FEATURES = [
  'bots',
  'cron',
  'email',
  'websocket-subscriptions',
  'graphql-introspection',
  'google-auth-required',
  'transaction-bundles',
  'ai',
  'aws-comprehend',
  'aws-textract',
  'reference-checks',
  'terminology',
  'validate-terminology',
]

const USUAL_FEATURES = [
  'bots',
  'cron',
  'email',
  'websocket-subscriptions',
  'transaction-bundles',
  'graphql-introspection',
]

/** Throws ConfigError whose message has one line a complaint. */
export function readConfig(env: NodeJS.ProcessEnv = process.env): Config {
  return buildConfig(new Reader(env))
}

/** Every setting with its form and default, in the order of the documentation. */
export function describeSettings(): ReadonlyMap<string, Setting> {
  const read = new Reader({ DATABASE_URL: 'postgres://x/x', REDIS_URL: 'redis://x' })
  buildConfig(read)
  return read.settings
}

function buildConfig(read: Reader): Config {
  const port = read.whole('PORT', 8103, 0, 65_535)
  const baseUrl = read.base('BASE_URL', `http://localhost:${port}/`)
  const dataDir = read.text('DATA_DIR', '.data') ?? ''
  const productName = read.text('PRODUCT_NAME', 'Botica') ?? ''
  const outbound = {
    only: read.hosts('OUTBOUND_ALLOW'),
    never: read.hosts('OUTBOUND_DENY'),
    userAgent: `${productName}/${program.version}`,
  }
  const onLoopback = ['localhost', '127.0.0.1', '[::1]'].includes(new URL(baseUrl).hostname)
  const reach = onLoopback ? 'all' : 'public'
  const config = {
    ...backends(read, baseUrl, dataDir),
    ...limits(read),
    ...jobs(read),
    ...features(read),
    port,
    baseUrl,
    dataDir,
    productName,
    botFetch: { ...outbound, reach: read.oneOf('BOT_FETCH', reach, ['off', 'public', 'all']) },
    hookTargets: { ...outbound, reach: read.oneOf('HOOK_TARGETS', reach, ['public', 'all']) },
  }
  read.done()
  return { ...config, warnings: read.warnings() }
}

function backends(read: Reader, baseUrl: string, dataDir: string) {
  return {
    databaseUrl: read.required('DATABASE_URL'),
    databaseDirectUrl: read.text('DATABASE_DIRECT_URL'),
    databaseReadUrls: read.list('DATABASE_READ_URL', []),
    databaseTlsInsecure: read.flag('DATABASE_TLS_INSECURE', false),
    databasePool: read.whole('DATABASE_POOL', 10, 5, 500),
    redisUrl: read.required('REDIS_URL'),
    redisTlsInsecure: read.flag('REDIS_TLS_INSECURE', false),
    redisTimeoutMs: read.whole('REDIS_TIMEOUT_MS', 2000, 100),
    storageUrl: read.storage('STORAGE_URL', `file:${dataDir}/storage`),
    superAdminEmail: read.text('SUPER_ADMIN_EMAIL', 'admin@example.com') ?? '',
    superAdminPassword: read.secret('SUPER_ADMIN_PASSWORD', 8),
    superAdminClientId: read.uuid('SUPER_ADMIN_CLIENT_ID'),
    superAdminClientSecret: read.secret('SUPER_ADMIN_CLIENT_SECRET', 16),
    signingKey: read.text('SIGNING_KEY'),
    smtpUrl: read.smtp('SMTP_URL'),
    mailFrom: read.text('MAIL_FROM', 'Botica <no-reply@localhost>') ?? '',
    mailApprovedSenders: read.list('MAIL_APPROVED_SENDERS', []),
    appUrl: withSlash(read.url('APP_URL', baseUrl)),
    logLevel: read.oneOf('LOG_LEVEL', 'info', LOG_LEVELS),
  }
}

function limits(read: Reader) {
  return {
    corsOrigins: read.list('CORS_ORIGINS', ['*']),
    frameAncestors: read.origins('FRAME_ANCESTORS'),
    trustProxy: read.flag('TRUST_PROXY', false),
    maxBodyBytes: read.whole('MAX_BODY_BYTES', 16_777_216, 1024),
    maxBundleBytes: read.whole('MAX_BUNDLE_BYTES', 52_428_800, 1024),
    largeBodyBytes: read.whole('LARGE_BODY_BYTES', 65_536, 1024),
    maxBatchEntries: read.whole('MAX_BATCH_ENTRIES', 10_000, 1),
    maxTransactionWrites: read.whole('MAX_TRANSACTION_WRITES', 2000, 1),
    batchTimeoutMs: read.whole('BATCH_TIMEOUT_MS', 120_000, 1),
    maxUploadBytes: read.whole('MAX_UPLOAD_BYTES', 5_368_709_120, 1024),
    rateLimitPerMinute: read.whole('RATE_LIMIT_PER_MINUTE', 60_000, 0),
    authRateLimitPerMinute: read.whole('AUTH_RATE_LIMIT_PER_MINUTE', 160, 0),
    passwordQueueDepth: read.whole('PASSWORD_QUEUE_DEPTH', 8, 1, 100),
    requestIdleSeconds: read.whole('REQUEST_IDLE_SECONDS', 60, 1, 3600),
    anonymousSocketsMax: read.whole('ANONYMOUS_SOCKETS_MAX', 100, 1),
  }
}

function jobs(read: Reader) {
  return {
    executeWaitMs: read.whole('EXECUTE_WAIT_MS', 25_000, 1, 110_000),
    executeDeadline: read.oneOf('EXECUTE_DEADLINE', 'accept', ['accept', 'fail']),
    botTimeoutMs: read.whole('BOT_TIMEOUT_MS', 10_000, 1),
    botTimeoutMaxMs: read.whole('BOT_TIMEOUT_MAX_MS', 900_000, 1),
    botMemoryMb: read.whole('BOT_MEMORY_MB', 128, 16, 512),
    botResultMaxBytes: read.whole('BOT_RESULT_MAX_BYTES', 6_291_456, 1024),
    botLogMaxBytes: read.whole('BOT_LOG_MAX_BYTES', 262_144, 1024),
    botInputArchive: read.flag('BOT_INPUT_ARCHIVE', false),
    preCommitBots: read.flag('PRE_COMMIT_BOTS', false),
    workerConcurrency: read.whole('WORKER_CONCURRENCY', 8, 1, 1000),
    botConcurrency: read.whole('BOT_CONCURRENCY', 0, 0),
    projectConcurrency: read.whole('PROJECT_CONCURRENCY', 0, 0),
    workerMemoryMb: read.whole('WORKER_MEMORY_MB', defaultMemoryMb(), 1),
    workerQueues: read.list('WORKER_QUEUES', QUEUE_NAMES, QUEUE_NAMES),
    queueBacklogMax: read.whole('QUEUE_BACKLOG_MAX', 10_000, 1),
    exportTtlHours: read.whole('EXPORT_TTL_HOURS', 24, 1),
    exportCompressionLevel: read.whole('EXPORT_COMPRESSION_LEVEL', 1, 0, 9),
  }
}

function features(read: Reader) {
  return {
    defaultProjectFeatures: read.list('DEFAULT_PROJECT_FEATURES', USUAL_FEATURES, FEATURES),
    openPatientAccess: read.flag('OPEN_PATIENT_ACCESS', false),
    metricsToken: read.text('METRICS_TOKEN'),
    registerEnabled: read.flag('REGISTER_ENABLED', false),
    passwordCheck: read.oneOf('PASSWORD_CHECK', 'list', ['off', 'list', 'remote']),
    passwordCheckUrl: withSlash(
      read.url('PASSWORD_CHECK_URL', 'https://api.pwnedpasswords.com/range/'),
    ),
    cliClientEnabled: read.flag('CLI_CLIENT_ENABLED', true),
    consoleEnabled: read.flag('CONSOLE_ENABLED', true),
    introspectionEnabled: read.flag('INTROSPECTION_ENABLED', true),
    graphqlAudit: read.oneOf('GRAPHQL_AUDIT', 'log', ['log', 'resource']),
    introspectionOpen: read.flag('INTROSPECTION_OPEN', false),
    autoDownload: read.flag('AUTO_DOWNLOAD', false),
    googleClientId: read.text('GOOGLE_CLIENT_ID'),
    googleJwksUrl: read.url('GOOGLE_JWKS_URL', 'https://www.googleapis.com/oauth2/v3/certs'),
    recaptchaSiteKey: read.text('RECAPTCHA_SITE_KEY'),
    recaptchaSecret: read.text('RECAPTCHA_SECRET'),
    recaptchaUrl: read.url('RECAPTCHA_URL', 'https://www.google.com/recaptcha/api/siteverify'),
  }
}

function withSlash(url: string): string {
  return url.endsWith('/') ? url : `${url}/`
}

const MB = 1024 * 1024
/** A larger budget is somebody's decision. */
const MOST_MEMORY_MB = 8192

/** The limit of the container (cgroup), or half of a machine that is shared with others; 2 GB at most. */
export function defaultMemoryMb(total = totalmem(), limit = process.constrainedMemory()): number {
  // Without a limit Node answers 0, or a number that no machine has.
  const isLimited = limit > 0 && limit < total
  return Math.min(Math.floor((isLimited ? limit : total / 2) / MB), MOST_MEMORY_MB)
}
