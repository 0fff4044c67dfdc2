/** Passwords as self-describing scrypt strings: `scrypt$N$r$p$salt$hash`, both parts base64url. */
import { randomBytes, scrypt, timingSafeEqual } from 'node:crypto'

const COST = { N: 2 ** 17, r: 8, p: 1 }
const HASH_BYTES = 32
const SALT_BYTES = 16

/** Takes about 0.3 s and 128 MiB, off the main thread. */
export async function hashPassword(password: string): Promise<string> {
  const salt = randomBytes(SALT_BYTES)
  const hash = await derive(password, salt, COST)
  const { N, r, p } = COST
  return ['scrypt', N, r, p, salt.toString('base64url'), hash.toString('base64url')].join('$')
}

/** False for a wrong password and for a string that is no hash of ours. */
export async function verifyPassword(password: string, stored: string): Promise<boolean> {
  const match = /^scrypt\$(\d{1,7})\$(\d{1,2})\$(\d{1,2})\$([\w-]+)\$([\w-]+)$/.exec(stored)
  if (!match) return false
  const [, N, r, p, salt = '', hash = ''] = match
  const wanted = Buffer.from(hash, 'base64url')
  const cost = { N: Number(N), r: Number(r), p: Number(p) }
  const found = await derive(password, Buffer.from(salt, 'base64url'), cost)
  return wanted.length === found.length && timingSafeEqual(wanted, found)
}

function derive(password: string, salt: Buffer, cost: typeof COST): Promise<Buffer> {
  // Node refuses more than 32 MiB unless told; scrypt needs 128·N·r bytes and a little.
  const maxmem = 128 * cost.N * cost.r + 2 ** 20
  const normal = password.normalize('NFKC')
  return new Promise((resolve, reject) => {
    scrypt(normal, salt, HASH_BYTES, { ...cost, maxmem }, (error, key) =>
      error ? reject(error) : resolve(key),
    )
  })
}
