/** Public keys of clients: inline, or fetched from their `jwksUri` and kept for five minutes. */
import type { JWK } from 'jose'
import { LRUCache } from 'lru-cache'
import { AssertionError, readKeySet } from '../../../shared/access/credentials/client-assertions.ts'
import type { Outbound } from '../../../shared/config/outbound.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'
import { fetchOutside } from '../../../shared/platform/outbound/fetch-outside.ts'
import type { Services } from '../../../shared/services.ts'

const KEPT_MS = 300_000
const KEPT_SETS = 1000
const MAX_BYTES = 262_144
const PATIENCE_MS = 5000
/** An unknown `kid` makes us look again, but not for each request that invents one. */
const AGAIN_MS = 5000

interface Fetched {
  readonly at: number
  readonly keys: Promise<readonly JWK[]>
}

export interface ClientKeys {
  /** Those of the client; looked up again when none has this `kid`. Errors: AssertionError. */
  find(client: Resource, kid: string): Promise<readonly JWK[]>
  /** The same of a key set's address. */
  at(uri: string, kid: string): Promise<readonly JWK[]>
}

export function createClientKeys({ config }: Services): ClientKeys {
  const sets = new LRUCache<string, Fetched>({ max: KEPT_SETS, ttl: KEPT_MS })

  const fetchKeys = (uri: string): Fetched => {
    const keys = readKeys(uri, config.hookTargets)
    const fetched = { at: Date.now(), keys }
    sets.set(uri, fetched)
    keys.catch(() => {
      if (sets.peek(uri) === fetched) sets.delete(uri)
    })
    return fetched
  }

  const at = async (uri: string, kid: string): Promise<readonly JWK[]> => {
    const known = sets.get(uri) ?? fetchKeys(uri)
    const keys = await known.keys
    const isKnown = keys.some((key) => key.kid === kid)
    if (isKnown || Date.now() - known.at < AGAIN_MS) return keys
    return await fetchKeys(uri).keys
  }

  return {
    at,
    async find(client, kid) {
      if (typeof client.jwks === 'string') return readKeySet(client.jwks)
      if (typeof client.jwksUri !== 'string') {
        throw new AssertionError('cannot be checked: the client has no keys')
      }
      return await at(client.jwksUri, kid)
    },
  }
}

async function readKeys(url: string, rules: Outbound): Promise<readonly JWK[]> {
  if (rules.reach === 'public' && !url.startsWith('https:')) {
    throw new AssertionError('cannot be checked: jwksUri must be an https address')
  }
  try {
    const { status, body } = await fetchOutside(
      {
        url,
        method: 'GET',
        headers: { accept: 'application/json' },
        body: undefined,
        redirect: 'error',
        maxBytes: MAX_BYTES,
        timeoutMs: PATIENCE_MS,
      },
      rules,
      new AbortController().signal,
    )
    if (status === 200) return readKeySet(body.toString('utf8'))
  } catch (error) {
    if (error instanceof AssertionError) throw error
    // What went wrong on the way concerns the owner of the address, not who knocks here.
  }
  throw new AssertionError('cannot be checked: the keys of the client could not be read')
}
