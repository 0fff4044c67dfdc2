/**
 * Scrypt password hashes, `scrypt$N$r$p$salt$hash` in base64url. Servers hash inside `Hashing.run`, which limits
 * concurrency.
 */

import { hash, randomBytes, scrypt, timingSafeEqual } from 'node:crypto'
import type { Config } from '../../core/config/config.ts'
import { timings } from '../../core/config/waits.ts'
import { badRequest } from '../../core/errors.ts'

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

const COST: Cost = { N: 2 ** timings.passwordCost, r: 8, p: 1 }
const HASH_BYTES = 32
const SALT_BYTES = 16
/** Compared with when no password is stored, so that the response time does not reveal it. */
const NOBODY: Stored = { cost: COST, salt: Buffer.alloc(SALT_BYTES), hash: Buffer.alloc(0) }

/** Needs 128 MiB, off the main thread; call inside `Hashing.run`. */
export async function hashPassword(password: string): Promise<string> {
  const salt = randomBytes(SALT_BYTES)
  const hash = await derive(password, salt, COST)
  const { N, r, p } = COST
  return ['scrypt', N, r, p, salt.toString('base64url'), hash.toString('base64url')].join('$')
}

/** False, after the same work, when no valid hash is stored; call inside `Hashing.run`. */
export async function verifyPassword(
  password: string,
  stored: string | undefined,
): Promise<boolean> {
  const { cost, salt, hash } = parse(stored) ?? NOBODY
  const found = await derive(password, salt, cost)
  return hash.length === found.length && timingSafeEqual(hash, found)
}

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
  // Node's default limit is 32 MiB; scrypt needs a little more than 128·N·r bytes.
  const maxmem = 128 * cost.N * cost.r + 2 ** 20
  const normal = password.normalize('NFKC')
  return new Promise((resolve, reject) => {
    scrypt(normal, salt, HASH_BYTES, { ...cost, maxmem }, (error, key) =>
      error ? reject(error) : resolve(key),
    )
  })
}

const COMMON: ReadonlySet<string> = new Set(
  `
    00000000 0123456789 11111111 11223344 12121212 123123123 12341234 12345678 123456789
    1234567890 123456abc 123456qwerty 1234qwer 123654789 123abc123 123qweasd 147258369 1q2w3e4r
    1q2w3e4r5t 1qaz2wsx 1qazxsw2 22222222 33333333 44444444 55555555 66666666 77777777 87654321
    88888888 987654321 99999999 a1b2c3d4 aaaaaaaa abc12345 abcabcabc abcd1234 abcdefg1 abcdefgh
    admin123 admin1234 adminadmin administrator alexander amazon12 android1 angel123 anthony1
    apple123 arsenal1 asdf1234 asdfasdf asdfghjk asdfghjkl autumn2024 autumn2025 barcelona
    baseball baseball1 basketball batman123 benjamin biteme12 blessed1 blink182 buster12
    butterfly caroline changeme changeme1 changeme123 charlie1 cheese12 chelsea1 chocolate
    christopher clinic12 computer computer1 computer123 cookie12 corvette danielle december
    default1 demo1234 doctor12 dragon123 elephant elizabeth everton1 example1 facebook facebook1
    family12 february football football1 forever1 freedom1 friends1 fuckyou1 fuckyou2 gabriel1
    ginger12 goodbye1 goodluck google123 greenday guest123 hardcore health12 heaven12 hello123
    hellohello helloworld hockey12 hospital hospital1 hunter12 iloveyou iloveyou1 iloveyou2
    instagram internet iphone12 ironman1 isabella january1 jennifer jessica1 jesus123
    jesuschrist juventus killer12 letmein1 letmein123 linkedin linkinpark liverpool liverpool1
    login123 lovelove loveme12 loveyou1 madison1 manchester master12 master123 matthew1 maverick
    medicine medplum1 medplum123 mercedes metallica michael1 microsoft midnight monday12
    monkey123 mylove12 mypassword mypassword1 newpassword nicholas nintendo november nurse123
    october1 oldpassword p@ssw0rd p@ssword pass1234 pass12345 passw0rd password password1
    password12 password123 password1234 patient1 patricia pepper12 pharmacy pokemon1 princess
    princess1 q1w2e3r4 q1w2e3r4t5 qazwsxedc qweasd123 qweasdzxc qwerqwer qwerty12 qwerty123
    qwerty1234 qwertyui qwertyuiop ranger12 realmadrid root1234 samantha sample12 samsung1
    saturday secret123 secretsecret september shadow12 slipknot soccer12 spiderman spring2024
    spring2025 starwars stephanie strawberry summer12 summer2020 summer2021 summer2022
    summer2023 summer2024 summer2025 sunshine sunshine1 superman superman1 temp1234 temporary
    temppass test1234 test12345 testtest thisisapassword thursday tigger12 toor1234 tottenham
    trustno1 tuesday1 twitter1 user1234 veronica victoria welcome1 welcome12 welcome123 whatever
    whatever1 william1 windows1 winter12 winter2020 winter2021 winter2022 winter2023 winter2024
    winter2025 xxxxxxxx yourpassword youtube1 zaq12wsx zxcvbnm1 zxcvbnm123 zxcvzxcv zzzzzzzz
  `
    .trim()
    .split(/\s+/),
)

/** Ignores case and trailing symbols. */
function isCommonPassword(password: string): boolean {
  const lower = password.toLowerCase()
  return COMMON.has(lower) || COMMON.has(lower.replace(/[!.?*#$]+$/, ''))
}

const SHORTEST = 8
const LONGEST = 256
const PATIENCE_MS = 2000

/** `field` names the password in the request. Errors: 400. */
export async function requireGoodPassword(
  password: string,
  field: string,
  { passwordCheck, passwordCheckUrl }: Pick<Config, 'passwordCheck' | 'passwordCheckUrl'>,
): Promise<void> {
  const bytes = Buffer.byteLength(password)
  if (bytes < SHORTEST || bytes > LONGEST) {
    throw badRequest(`Password must be between ${SHORTEST} and ${LONGEST} characters`, field)
  }
  if (passwordCheck === 'off') return
  const isKnown =
    isCommonPassword(password) ||
    (passwordCheck === 'remote' && (await isBreached(password, passwordCheckUrl)))
  if (isKnown) {
    throw badRequest('Password found in breach database', field)
  }
}

/** Sends only the first 5 digits of the SHA-1. False when the database does not answer. */
async function isBreached(password: string, database: string): Promise<boolean> {
  const digest = hash('sha1', password).toUpperCase()
  try {
    const response = await fetch(`${database}${digest.slice(0, 5)}`, {
      headers: { 'Add-Padding': 'true' },
      signal: AbortSignal.timeout(PATIENCE_MS),
    })
    const text = response.ok ? await response.text() : ''
    return text.split(/\r?\n/).some((line) => {
      const [rest, count] = line.split(':')
      return rest === digest.slice(5) && count !== '0'
    })
  } catch {
    return false
  }
}
