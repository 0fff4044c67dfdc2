/**
 * Passwords as self-describing scrypt strings: `scrypt$N$r$p$salt$hash`, both parts base64url. The work is done
 * in libuv's pool. A service computes hashes inside `Hashing.run` only, which bounds how many (hashing.ts).
 */
import { randomBytes, scrypt, timingSafeEqual } from 'node:crypto'

interface Cost {
  readonly N: number
  readonly r: number
  readonly p: number
}

interface Stored {
  readonly cost: Cost
  readonly salt: Buffer
  readonly hash: Buffer
}

const COST: Cost = { N: 2 ** 17, r: 8, p: 1 }
const HASH_BYTES = 32
const SALT_BYTES = 16
/** What a password is compared with where there is none, so that the answer takes as long. */
const NOBODY: Stored = { cost: COST, salt: Buffer.alloc(SALT_BYTES), hash: Buffer.alloc(0) }

/** Takes about 0.3 s and 128 MiB, off the main thread; inside `Hashing.run`. */
export async function hashPassword(password: string): Promise<string> {
  const salt = randomBytes(SALT_BYTES)
  const hash = await derive(password, salt, COST)
  const { N, r, p } = COST
  return ['scrypt', N, r, p, salt.toString('base64url'), hash.toString('base64url')].join('$')
}

/** False, after the same work, where nothing is stored that could be a hash of ours; inside `Hashing.run`. */
export async function verifyPassword(
  password: string,
  stored: string | undefined,
): Promise<boolean> {
  const { cost, salt, hash } = parse(stored) ?? NOBODY
  const found = await derive(password, salt, cost)
  return hash.length === found.length && timingSafeEqual(hash, found)
}

/** True for a hash of other parameters than those of new ones. */
export function isOutdated(stored: string): boolean {
  const { N, r, p } = COST
  return !stored.startsWith(`scrypt$${N}$${r}$${p}$`)
}

function parse(stored: string | undefined): Stored | undefined {
  const match = /^scrypt\$(\d{1,7})\$(\d{1,2})\$(\d{1,2})\$([\w-]+)\$([\w-]+)$/.exec(stored ?? '')
  if (!match) return undefined
  const [, N, r, p, salt = '', hash = ''] = match
  return {
    cost: { N: Number(N), r: Number(r), p: Number(p) },
    salt: Buffer.from(salt, 'base64url'),
    hash: Buffer.from(hash, 'base64url'),
  }
}

function derive(password: string, salt: Buffer, cost: Cost): Promise<Buffer> {
  // Node refuses more than 32 MiB unless told; scrypt needs 128·N·r bytes and a little.
  const maxmem = 128 * cost.N * cost.r + 2 ** 20
  const normal = password.normalize('NFKC')
  return new Promise((resolve, reject) => {
    scrypt(normal, salt, HASH_BYTES, { ...cost, maxmem }, (error, key) =>
      error ? reject(error) : resolve(key),
    )
  })
}
