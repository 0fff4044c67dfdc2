/** All settings with names and defaults, read once at startup. Errors are reported together. */

import { totalmem } from 'node:os'
import program from '../../../package.json' with { type: 'json' }
import type { Outbound } from './outbound.ts'
import { Reader, type Setting } from './reader.ts'

type PasswordCheck = 'off' | 'list' | 'remote'

export interface Config {
  readonly port: number
  /** Ends in a slash; prefix of all absolute URLs in responses. */
  readonly baseUrl: string
  readonly databaseUrl: string
  /** PostgreSQL's address if `databaseUrl` is a pooler's. */
  readonly databaseDirectUrl: string | undefined
  readonly databaseReadUrls: readonly string[]
  readonly databaseTlsInsecure: boolean
  readonly databasePool: number
  readonly redisUrl: string
  readonly redisTlsInsecure: boolean
  /** Timeout of Redis commands in requests. */
  readonly redisTimeoutMs: number
  readonly storageUrl: string
  readonly dataDir: string
  readonly superAdminEmail: string
  readonly superAdminPassword: string | undefined
  readonly superAdminClientId: string | undefined
  readonly superAdminClientSecret: string | undefined
  /** One private JWK or an array, as text. */
  readonly signingKey: string | undefined
  readonly smtpUrl: string | undefined
  readonly mailFrom: string
  /** Senders that clients may use. */
  readonly mailApprovedSenders: readonly string[]
  readonly appUrl: string
  readonly logLevel: string
  readonly corsOrigins: readonly string[]
  readonly frameAncestors: readonly string[]
  readonly trustProxy: boolean
  /** Name in lower case of the header in which the proxy passes the client certificate. */
  readonly clientCertificateHeader: string | undefined
  /** The proxy passes only certificates that its CAs have issued. */
  readonly clientCertificateVerified: boolean
  readonly maxBodyBytes: number
  readonly maxBundleBytes: number
  /** Requests with larger bodies run in a web thread. */
  readonly largeBodyBytes: number
  readonly maxBatchEntries: number
  readonly maxTransactionWrites: number
  readonly batchTimeoutMs: number
  readonly maxUploadBytes: number
  readonly rateLimitPerMinute: number
  readonly authRateLimitPerMinute: number
  /** Sign-ins queued per concurrent password hash. */
  readonly passwordQueueDepth: number
  readonly requestIdleSeconds: number
  /** Unauthenticated web sockets per address. */
  readonly anonymousSocketsMax: number
  readonly executeWaitMs: number
  readonly executeDeadline: 'accept' | 'fail'
  readonly botTimeoutMs: number
  readonly botTimeoutMaxMs: number
  readonly botMemoryMb: number
  readonly botResultMaxBytes: number
  readonly botLogMaxBytes: number
  readonly botFetch: Outbound
  readonly botInputArchive: boolean
  readonly preCommitBots: boolean
  readonly workerConcurrency: number
  /** Concurrent runs per bot, and per project, over all workers; 0: unlimited. */
  readonly botConcurrency: number
  readonly projectConcurrency: number
  /** Memory of a web process; bounds the thread for large bodies. */
  readonly webMemoryMb: number
  /** Memory of a worker and its executors; bounds the number of executors. */
  readonly workerMemoryMb: number
  readonly workerQueues: readonly string[]
  readonly queueBacklogMax: number
  readonly exportTtlHours: number
  readonly exportCompressionLevel: number
  readonly defaultProjectFeatures: readonly string[]
  readonly openPatientAccess: boolean
  readonly newProjectPolicies: boolean
  readonly metricsToken: string | undefined
  readonly productName: string
  /** Allows open registration of users and projects. */
  readonly registerEnabled: boolean
  readonly passwordCheck: PasswordCheck
  /** URL of the breach database; the first 5 digits of a SHA-1 are appended. */
  readonly passwordCheckUrl: string
  /** Enables the built-in client of the command line tool. */
  readonly cliClientEnabled: boolean
  readonly consoleEnabled: boolean
  /** Allows GraphQL introspection for non-admins of Projects with the feature. */
  readonly introspectionEnabled: boolean
  /** Destination of the AuditEvents of GraphQL reads. */
  readonly graphqlAudit: 'log' | 'resource'
  /** `/oauth2/introspect` answers unauthenticated callers. */
  readonly introspectionOpen: boolean
  readonly hookTargets: Outbound
  /** Downloads external attachments by default; Projects can override it. */
  readonly autoDownload: boolean
  readonly googleClientId: string | undefined
  /** URL of the keys for Google's ID tokens. */
  readonly googleJwksUrl: string
  readonly recaptchaSiteKey: string | undefined
  readonly recaptchaSecret: string | undefined
  readonly recaptchaUrl: string
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

/** Feature names of a Project; from `transaction-bundles` on they exist only for clients. */
const FEATURES = [
  'bots',
  'cron',
  'email',
  'websocket-subscriptions',
  'graphql-introspection',
  'google-auth-required',
  'transaction-bundles',
  'ai',
  'ai-realtime',
  'async-batch',
  'log-streaming',
  'range-search',
  'scheduling',
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

/** Throws ConfigError whose message has one line per error. */
export function readConfig(env: NodeJS.ProcessEnv = process.env): Config {
  return buildConfig(new Reader(env))
}

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
    clientCertificateHeader: read.header('CLIENT_CERTIFICATE_HEADER', 'TRUST_PROXY'),
    clientCertificateVerified: read.flag(
      'CLIENT_CERTIFICATE_VERIFIED',
      false,
      'CLIENT_CERTIFICATE_HEADER',
    ),
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
    webMemoryMb: read.whole('WEB_MEMORY_MB', defaultMemoryMb(), 1),
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
    newProjectPolicies: read.flag('NEW_PROJECT_POLICIES', false),
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
const MOST_MEMORY_MB = 8192

/** The container's limit (cgroup), otherwise half of the machine, within `MOST_MEMORY_MB`. */
export function defaultMemoryMb(total = totalmem(), limit = process.constrainedMemory()): number {
  // Without a limit Node returns 0, or a number larger than any memory.
  const isLimited = limit > 0 && limit < total
  return Math.min(Math.floor((isLimited ? limit : total / 2) / MB), MOST_MEMORY_MB)
}
