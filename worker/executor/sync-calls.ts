/**
 * Synchronous calls of the guest to Node: URL syntax, digests and randomness. The table is fixed, accepts JSON text,
 * and returns a string or JSON text; no object or error of this process passes through.
 */
import { crypto, cryptoAnswers } from './crypto-calls.ts'

const MAX_TEXT = 8 * 1024 * 1024
const MAX_RANDOM_BYTES = 65_536
const ALGORITHMS = ['md5', 'sha1', 'sha224', 'sha256', 'sha384', 'sha512']

const answers: Readonly<Record<string, (question: Readonly<Record<string, unknown>>) => unknown>> =
  {
    url: ({ input, base }) =>
      urlParts(() => new URL(text(input), base === undefined ? undefined : text(base))),
    'url-set': ({ href, property, value }) =>
      urlParts(() => changedUrl(text(href), property, text(value))),
    hash: ({ algorithm, data }) =>
      crypto().createHash(digest(algorithm)).update(text(data), 'base64').digest('base64'),
    hmac: ({ algorithm, key, data }) =>
      crypto()
        .createHmac(digest(algorithm), Buffer.from(text(key), 'base64'))
        .update(text(data), 'base64')
        .digest('base64'),
    random: ({ bytes }) => crypto().randomBytes(count(bytes)).toString('base64'),
    uuid: () => crypto().randomUUID(),
    ...cryptoAnswers,
  }

/** Returns `1` and the answer, or `0` and a message; never throws. */
export function answerSyncCall(kind: unknown, question: unknown): string {
  try {
    if (typeof kind !== 'string' || typeof question !== 'string') return '0Invalid call'
    if (question.length > MAX_TEXT) return '0Input is too large'
    const answer = Object.hasOwn(answers, kind) ? answers[kind] : undefined
    if (!answer) return `0Unknown call`
    const asked: unknown = JSON.parse(question)
    const given = answer(typeof asked === 'object' && asked !== null ? { ...asked } : {})
    return `1${typeof given === 'string' ? given : JSON.stringify(given)}`
  } catch (error) {
    return `0${error instanceof Error ? error.message : 'Invalid call'}`
  }
}

function text(value: unknown): string {
  if (typeof value !== 'string') throw new TypeError('A string is needed')
  return value
}

function digest(value: unknown): string {
  const name = text(value).toLowerCase().replace('-', '')
  if (!ALGORITHMS.includes(name)) throw new TypeError('Digest method not supported')
  return name
}

function count(value: unknown): number {
  const wanted = Number(value)
  if (!Number.isInteger(wanted) || wanted < 0 || wanted > MAX_RANDOM_BYTES) {
    throw new RangeError(`Between 0 and ${MAX_RANDOM_BYTES} random bytes can be had`)
  }
  return wanted
}

const SETTABLE = [
  'href',
  'protocol',
  'username',
  'password',
  'host',
  'hostname',
  'port',
  'pathname',
  'search',
  'hash',
] as const

function changedUrl(href: string, property: unknown, value: string): URL {
  const url = new URL(href)
  const known = SETTABLE.find((one) => one === property)
  if (known) url[known] = value
  return url
}

function urlParts(make: () => URL): Readonly<Record<string, string>> {
  try {
    const url = make()
    return Object.fromEntries([...SETTABLE, 'origin' as const].map((part) => [part, url[part]]))
  } catch {
    return { error: 'Invalid URL' }
  }
}
