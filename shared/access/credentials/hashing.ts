/**
 * The queue of password hashing. A hash takes a third of a second of a processor, so a process computes few at
 * a time and lets few wait. Nobody can fill the queue against others: an account has five places, and where all
 * places are taken somebody has to go with a 429: first the least trusted, then the address with the most places,
 * then the longest wait. The reverse order decides who is next: under load the newest sign-in is answered
 * quickly, and those before it are refused quickly, instead of all of them late.
 */
import { availableParallelism } from 'node:os'
import { tooManyRequests } from '../../core/errors.ts'

/** The caller that a hash is computed for. */
export interface Applicant {
  readonly account: string
  readonly address: string
  readonly trust: Trust
}

/** `proven` by a session or a known device; a `regular` has signed in from this address before. */
type Trust = 'proven' | 'regular' | 'stranger'

export interface Hashing {
  /** Runs `work`, which computes hashes, when there is room for it. Errors: 429. */
  run<T>(applicant: Applicant, work: () => Promise<T>): Promise<T>
}

interface QueuedHash extends Applicant {
  readonly start: () => void
  readonly refuse: () => void
}

/** A processor stays free for requests, and of libuv's four threads one for files and signatures. */
const AT_ONCE = Math.max(1, Math.min(3, availableParallelism() - 1))
const MOST_PER_ACCOUNT = 5
const ORDER: readonly Trust[] = ['proven', 'regular', 'stranger']
const RETRY_SECONDS = 1
/** Newer sign-ins may overtake one again and again; its caller is not left waiting for good. */
const PATIENCE_MS = 25_000

/** `depth` places to wait for each hash that is computed at a time. */
export function createHashing(depth: number, atOnce = AT_ONCE): Hashing {
  const mostWaiting = depth * atOnce
  const running = new Set<Applicant>()
  /** The longest wait first. */
  const waiting: QueuedHash[] = []

  const count = (is: (one: Applicant) => boolean) =>
    [...running].filter(is).length + waiting.filter(is).length

  /** Below zero where `a` goes before `b`; the later of two equals goes first. */
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
        // The place is taken here, so that nobody slips in before the work begins.
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
      // An object of its own: two attempts may be of one applicant.
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

/** A caller whose session allows what it asks for, such as an administrator who sets a password. */
export function provenApplicant(account: string): Applicant {
  return { account, address: account, trust: 'proven' }
}
