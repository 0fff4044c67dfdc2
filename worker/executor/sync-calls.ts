/**
 * Questions of the guest that Node itself answers while the isolate waits: URL syntax, digests and
 * randomness, which V8 alone does not have. The table is fixed, takes JSON text and gives a string as it is or
 * anything else as JSON text, and never lets an object or an error of this process through.
 */
import { createHash, createHmac, randomBytes, randomUUID } from 'node:crypto'

const MAX_TEXT = 8 * 1024 * 1024
const MAX_RANDOM_BYTES = 65_536
const ALGORITHMS = ['md5', 'sha1', 'sha224', 'sha256', 'sha384', 'sha512']

const answers: Readonly<Record<string, (question: Readonly<Record<string, unknown>>) => unknown>> =
  {
    url: ({ url, base }) => parseUrl(text(url), base === undefined ? undefined : text(base)),
    hash: ({ algorithm, data }) =>
      createHash(digest(algorithm)).update(text(data), 'base64').digest('base64'),
    hmac: ({ algorithm, key, data }) =>
      createHmac(digest(algorithm), Buffer.from(text(key), 'base64'))
        .update(text(data), 'base64')
        .digest('base64'),
    random: ({ bytes }) => randomBytes(count(bytes)).toString('base64'),
    uuid: () => randomUUID(),
  }

/** `1` and the answer, or `0` and a message; never throws. */
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

function parseUrl(url: string, base: string | undefined): unknown {
  if (!URL.canParse(url, base)) throw new TypeError('Invalid URL')
  const {
    href,
    origin,
    protocol,
    username,
    password,
    host,
    hostname,
    port,
    pathname,
    search,
    hash,
  } = new URL(url, base)
  return {
    href,
    origin,
    protocol,
    username,
    password,
    host,
    hostname,
    port,
    pathname,
    search,
    hash,
  }
}
