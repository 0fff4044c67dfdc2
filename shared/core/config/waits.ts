/**
 * Times by which the service waits for others, and work that is costly on purpose. Tests and trials lower them by
 * WAITS, a JSON object of the same names, which counts for nothing where NODE_ENV is `production`.
 */

interface Timings {
  /** A process that starts waits so long for PostgreSQL and for Redis. */
  readonly startMs: number
  /** After SIGTERM a web process takes requests for so long. */
  readonly drainMs: number
  /** Without storage, or without any worker, for so long a web process is no longer well. */
  readonly outageMs: number
  /** A session that was read is used so long; from half of that time on it is read again. */
  readonly sessionMs: number
  /**
   * A changed SearchParameter is indexed so long after its write. By then no process uses a session from before,
   * whose time and 1 s more have passed, and every transaction of such a session is over.
   */
  readonly indexMs: number
  /** Workers look so often for runs, requests and imports that Redis has not announced. */
  readonly sweepMs: number
  /** A worker that has not renewed the lease of a job, a mail or a delivery for so long has lost it. */
  readonly leaseMs: number
  /** The first pause before a source of an import is read again; each further one is twice as long. */
  readonly retryMs: number
  /** Binary logarithm of scrypt's N: 17 takes 0.3 s of a core and 128 MiB for each password. */
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
  retryMs: 1000,
  passwordCost: 17,
}

const { NODE_ENV, WAITS = '{}' } = process.env

export const timings: Timings =
  NODE_ENV === 'production' ? DEFAULTS : { ...DEFAULTS, ...JSON.parse(WAITS) }
