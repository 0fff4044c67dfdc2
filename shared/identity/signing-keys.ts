/**
 * Token signing keys: SIGNING_KEY, or JsonWebKey resources of the system project, one per algorithm, rotated every 90
 * days. RS256 signs ID tokens of clients with `idTokenSignedResponseAlg`, ES256 all others. A key is published ten
 * minutes before its first use and until its last signature expires. Private parts are stored encrypted, so that no
 * read of resources leaks them.
 */
import {
  type CryptoKey,
  calculateJwkThumbprint,
  exportJWK,
  generateKeyPair,
  importJWK,
  type JWK,
} from 'jose'
import { seal, sealingKey, unseal } from '../access/credentials/sealing.ts'
import type { KeySet, SigningKey } from '../access/credentials/tokens.ts'
import { SYSTEM_PROJECT, system } from '../access/project-context.ts'
import type { Config } from '../core/config/config.ts'
import { ConfigError } from '../core/config/reader.ts'
import { attempt, notSupported } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import { typeNumber } from '../fhir/definitions.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import type { Database } from '../postgres/database.ts'
import { readSalt } from '../store/index/keys.ts'
import type { Repository } from '../store/repository.ts'

const RELOAD_AFTER_MS = 10_000
/** Below the ten minutes of prior publication, so that every process knows a key in time. */
const LOOK_EVERY_MS = 240_000
const PUBLISHED_BEFORE_MS = 600_000
const ROTATE_AFTER_MS = 90 * 86_400_000
/** Longest life of an access token, plus clock skew. */
const SIGNED_LIVES_MS = 86_400_000 + 300_000
/** Unique among the advisory locks of the service. */
const KEY_LOCK = 726_001

/** One statement at a normal start; creates a missing key. Errors: ConfigError. */
export async function openSigningKeys(
  config: Config,
  database: Database,
  repository: Repository,
  log: Logger,
): Promise<KeySet> {
  if (config.signingKey !== undefined) {
    const given = await parseSigningKeys(config.signingKey)
    const rotate = async () => {
      throw notSupported('The keys are those of SIGNING_KEY; set another one first in its list')
    }
    return { keys: given, reload: async () => {}, rotate, close: () => {} }
  }
  const seal = sealingKey(await readSalt(database), 'signing-key')
  const store = { database, repository, seal }
  let stored = await load(store)
  const isThere = (found: readonly StoredKey[]) => found.length > 0
  if (!isEnoughOfEach(stored, isThere)) stored = await createUnless(store, isThere)
  let loadedAt = Date.now()
  const look = async () => {
    loadedAt = Date.now()
    stored = await load(store)
    const isYoung = ([newest]: readonly StoredKey[]) =>
      newest === undefined || newest.madeAt + ROTATE_AFTER_MS >= Date.now()
    if (!isEnoughOfEach(stored, isYoung)) stored = await createUnless(store, isYoung)
  }
  const timer = setInterval(() => {
    look().catch((cause: unknown) => log.warn({ cause }, 'Signing keys could not be looked at'))
  }, LOOK_EVERY_MS)
  timer.unref()
  return {
    get keys() {
      const now = Date.now()
      return ALGORITHMS.flatMap((alg) => inUse(ofAlgorithm(stored, alg), now))
    },
    async reload() {
      if (Date.now() - loadedAt >= RELOAD_AFTER_MS) await look()
    },
    async rotate() {
      stored = await createUnless(store, () => false)
    },
    close: () => clearInterval(timer),
  }
}

interface StoredKey {
  readonly key: SigningKey
  readonly madeAt: number
}

/** The first is the default. */
const ALGORITHMS = ['ES256', 'RS256'] as const
type Algorithm = (typeof ALGORITHMS)[number]

function ofAlgorithm(stored: readonly StoredKey[], alg: Algorithm): readonly StoredKey[] {
  return stored.filter(({ key }) => key.alg === alg)
}

function isEnoughOfEach(
  stored: readonly StoredKey[],
  isEnough: (found: readonly StoredKey[]) => boolean,
): boolean {
  return ALGORITHMS.every((alg) => isEnough(ofAlgorithm(stored, alg)))
}

/** Returns the signing key, then the other published ones. `stored` is newest first. */
export function inUse(stored: readonly StoredKey[], now: number): readonly SigningKey[] {
  const usable = stored.findIndex(({ madeAt }) => madeAt + PUBLISHED_BEFORE_MS <= now)
  const signer = usable === -1 ? stored.length - 1 : usable
  const published = stored.filter((_, place) => {
    // Each stopped signing when its successor began.
    const stoppedAt = (stored[place - 1]?.madeAt ?? now) + PUBLISHED_BEFORE_MS
    return place !== signer && (place < signer || stoppedAt + SIGNED_LIVES_MS > now)
  })
  return [...stored.slice(signer, signer + 1), ...published].map(({ key }) => key)
}

/** Parses SIGNING_KEY: a private JWK or an array; ES256 first. */
async function parseSigningKeys(text: string): Promise<SigningKey[]> {
  const jwks = parseJwks(text)
  const keys = await Promise.all(
    jwks.map(async (jwk) => {
      try {
        return await signingKey(jwk)
      } catch {
        throw new ConfigError('SIGNING_KEY must hold private ES256 or RS256 JWKs only')
      }
    }),
  )
  if (keys.every(({ alg }) => alg !== 'ES256'))
    throw new ConfigError('SIGNING_KEY needs an ES256 JWK')
  return ALGORITHMS.flatMap((alg) => keys.filter((key) => key.alg === alg))
}

/** Errors: ConfigError without the secret value. */
function parseJwks(text: string): readonly JWK[] {
  const value = attempt(() => JSON.parse(text))
  const list: readonly unknown[] = Array.isArray(value) ? value : [value]
  if (list.length > 0 && list.every(isObject)) return list
  throw new ConfigError('SIGNING_KEY must be a private JWK or a JSON array of them')
}

const RSA_PRIVATE = ['d', 'p', 'q', 'dp', 'dq', 'qi'] as const

async function signingKey(jwk: JWK): Promise<SigningKey> {
  const { kty, crv, x, y, n, e, d } = jwk
  const isRsa = kty === 'RSA' && (n?.length ?? 0) >= 342
  if (d === undefined || !(isRsa || (kty === 'EC' && crv === 'P-256'))) throw new Error('no key')
  const kid = jwk.kid ?? (await calculateJwkThumbprint(jwk))
  // Safe: the members depend on the kind, checked above.
  const publicPart = (isRsa ? { kty, n, e } : { kty, crv, x, y }) as JWK
  const names = isRsa ? RSA_PRIVATE : (['d'] as const)
  const secret = Object.fromEntries(names.map((name) => [name, jwk[name]]))
  const alg = isRsa ? 'RS256' : 'ES256'
  const [privateKey, publicKey] = await Promise.all([
    importJWK({ ...publicPart, ...secret }, alg),
    importJWK(publicPart, alg),
  ])
  return {
    kid,
    alg,
    // importJWK returns raw bytes only for symmetric keys.
    privateKey: privateKey as CryptoKey,
    publicKey: publicKey as CryptoKey,
    publicJwk: { ...publicPart, kid, alg, use: 'sig' },
    urlSecret: sealingKey(Buffer.from(d, 'base64url'), 'signed-url'),
    deviceSecret: sealingKey(Buffer.from(d, 'base64url'), 'device'),
  }
}

interface KeyStore {
  readonly database: Database
  readonly repository: Repository
  readonly seal: Buffer
}

/** Newest first. */
async function load({ database, seal }: KeyStore): Promise<StoredKey[]> {
  const rows = await database.query<{ content: string; lu: Date }>({
    text: `
      select v.content, v.lu from resource r join version v using (project, type, id, ver)
      where r.project = $1 and r.type = $2 order by r.id desc limit 100`,
    values: [SYSTEM_PROJECT.number, typeNumber('JsonWebKey')],
  })
  const found = rows.map(({ content, lu }) => ({ jwk: JSON.parse(content) as Resource, lu }))
  const live = found.filter(({ jwk }) => jwk.active !== false)
  return await Promise.all(
    live.map(async ({ jwk, lu }) => ({
      key: await signingKey(unsealed(jwk, seal)),
      madeAt: lu.getTime(),
    })),
  )
}

/** Serializes concurrent processes; the second finds the first one's keys. */
async function createUnless(
  store: KeyStore,
  isEnough: (found: readonly StoredKey[]) => boolean,
): Promise<StoredKey[]> {
  return await store.database.transaction(async (connection) => {
    await connection.query({ text: 'select pg_advisory_xact_lock($1)', values: [KEY_LOCK] })
    const found = await load(store)
    const wanted = ALGORITHMS.filter((alg) => !isEnough(ofAlgorithm(found, alg)))
    if (wanted.length === 0) return found
    for (const alg of wanted) {
      const pair = await generateKeyPair(alg, { extractable: true })
      const jwk = await exportJWK(pair.privateKey)
      const kid = await calculateJwkThumbprint(jwk)
      const sealed = RSA_PRIVATE.flatMap((name) => {
        const value = jwk[name]
        return value === undefined ? [] : [[name, seal(value, store.seal).toString('base64url')]]
      })
      await store.repository.create(system, {
        resourceType: 'JsonWebKey',
        active: true,
        use: 'sig',
        ...jwk,
        alg,
        kid,
        ...Object.fromEntries(sealed),
      })
    }
    return await load(store)
  })
}

function unsealed(key: Resource, by: Buffer): JWK {
  const text = (name: string) => (typeof key[name] === 'string' ? key[name] : undefined)
  const open = ['kty', 'crv', 'x', 'y', 'n', 'e', 'kid'].map((name) => [name, text(name)])
  const secret = RSA_PRIVATE.map((name) => {
    const sealed = text(name)
    return [name, sealed && unseal(Buffer.from(sealed, 'base64url'), by).toString()]
  })
  const given = [...open, ...secret].filter(([, value]) => value !== undefined)
  return Object.fromEntries(given) as JWK
}
