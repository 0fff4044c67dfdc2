/**
 * Queue for password hashing. When it is full, the 429 goes to the least trusted caller, then the address with the
 * most places, then the longest wait, so one caller cannot fill it for the others. Newest first: under load some
 * logins stay fast instead of all of them slow.
 */
import { availableParallelism } from 'node:os'
import { tooManyRequests } from '../../core/errors.ts'

export interface Applicant {
  readonly account: string
  readonly address: string
  readonly trust: Trust
}

/** `proven`: by a session or a known device; `regular`: has signed in from this address before. */
type Trust = 'proven' | 'regular' | 'stranger'

export interface Hashing {
  /** Errors: 429. */
  run<T>(applicant: Applicant, work: () => Promise<T>): Promise<T>
}

interface QueuedHash extends Applicant {
  readonly start: () => void
  readonly refuse: () => void
}

/** Leaves one CPU for requests, and one of libuv's four threads for files and signatures. */
const AT_ONCE = Math.max(1, Math.min(3, availableParallelism() - 1))
const MOST_PER_ACCOUNT = 5
const ORDER: readonly Trust[] = ['proven', 'regular', 'stranger']
const RETRY_SECONDS = 1
/** After this wait, newer sign-ins no longer overtake. */
const PATIENCE_MS = 25_000

/** `depth`: waiting places per concurrent hash. */
export function createHashing(depth: number, atOnce = AT_ONCE): Hashing {
  const mostWaiting = depth * atOnce
  const running = new Set<Applicant>()
  const waiting: QueuedHash[] = []

  const count = (is: (one: Applicant) => boolean) =>
    [...running].filter(is).length + waiting.filter(is).length

  /** Negative when `a` goes first; of two equals, the later one does. */
  const compare = (a: QueuedHash, b: QueuedHash): number => {
    const weight = ({ address }: QueuedHash) => count((one) => one.address === address)
    const byTrust = ORDER.indexOf(a.trust) - ORDER.indexOf(b.trust)
    return byTrust || weight(a) - weight(b) || waiting.indexOf(b) - waiting.indexOf(a)
  }
  const leave = (place: QueuedHash) => {
    waiting.splice(waiting.indexOf(place), 1)
  }

  const wait = (applicant: Applicant): Promise<void> =>
    new Promise((resolve, reject) => {
      const refuse = () => {
        clearTimeout(timer)
        leave(place)
        reject(tooManyRequests(RETRY_SECONDS))
      }
      const start = () => {
        clearTimeout(timer)
        leave(place)
        // Takes the place before any await, so that no other caller can.
        running.add(applicant)
        resolve()
      }
      const timer = setTimeout(refuse, PATIENCE_MS)
      const place: QueuedHash = { ...applicant, start, refuse }
      waiting.push(place)
      if (waiting.length > mostWaiting) waiting.toSorted(compare).at(-1)?.refuse()
    })

  return {
    async run(applicant, work) {
      if (count(({ account }) => account === applicant.account) >= MOST_PER_ACCOUNT) {
        throw tooManyRequests(RETRY_SECONDS)
      }
      const own = { ...applicant }
      if (running.size < atOnce) running.add(own)
      else await wait(own)
      try {
        return await work()
      } finally {
        running.delete(own)
        waiting.toSorted(compare)[0]?.start()
      }
    },
  }
}

export function provenApplicant(account: string): Applicant {
  return { account, address: account, trust: 'proven' }
}
