/** Timeouts, intervals and password cost. WAITS (JSON) overrides them, unless NODE_ENV is `production`. */

interface Timings {
  /** Time for which a starting process waits for PostgreSQL and Redis. */
  readonly startMs: number
  /** Time after SIGTERM in which a web process still accepts requests. */
  readonly drainMs: number
  /** A web process is unhealthy after this long without storage or workers. */
  readonly outageMs: number
  /** Lifetime of a cached session; refreshed from half of it on. */
  readonly sessionMs: number
  /** Delay before a changed SearchParameter is indexed: by then all sessions from before the change have ended. */
  readonly indexMs: number
  readonly sweepMs: number
  readonly leaseMs: number
  /** Time of waiting in which the storage, or an import source, must deliver 64 KiB. */
  readonly silenceMs: number
  /** Time without any data of Redis after which a connection that waits for an answer is left. Blocking commands take 10 s. */
  readonly redisSilenceMs: number
  /** First retry delay for an import source; doubles with each retry. */
  readonly retryMs: number
  /** Total time of a job of downloads, each time that it is taken. */
  readonly downloadsMs: number
  /** Binary logarithm of scrypt's N: 17 needs 128 MiB for each password. */
  readonly passwordCost: number
}

const DEFAULTS: Timings = {
  startMs: 30_000,
  drainMs: 3000,
  outageMs: 60_000,
  sessionMs: 4000,
  indexMs: 6000,
  sweepMs: 10_000,
  leaseMs: 30_000,
  silenceMs: 60_000,
  redisSilenceMs: 60_000,
  retryMs: 1000,
  downloadsMs: 600_000,
  passwordCost: 17,
}

const { NODE_ENV, WAITS = '{}' } = process.env

export const timings: Timings =
  NODE_ENV === 'production' ? DEFAULTS : { ...DEFAULTS, ...JSON.parse(WAITS) }
