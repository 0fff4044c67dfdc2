/** Where Redis is: one server, or the Sentinels that know which server is the primary. */
import { type RedisOptions as AnyOptions, Redis } from 'ioredis'

type RedisOptions = Omit<AnyOptions, 'replyMapping'>

/** `redis-sentinel://user:password@host:port,host:port/number#name`, as other clients write it. */
const SENTINEL =
  /^(rediss?)-sentinel:\/\/(?:([^:@/]*)(?::([^@/]*))?@)?([^/?#]+)(?:\/(\d*))?(?:\?([^#]*))?#(.+)$/
const SENTINEL_PORT = 26_379

/** A connection to what `REDIS_URL` names. `isTlsInsecure` takes any certificate. */
export function createRedis(url: string, isTlsInsecure: boolean, options: RedisOptions): Redis {
  const tls =
    isTlsInsecure && url.startsWith('rediss') ? { tls: { rejectUnauthorized: false } } : {}
  const sentinels = sentinelsOf(url)
  if (sentinels === undefined) return new Redis(url, { ...tls, ...options })
  // Sentinels are asked over TLS where the servers are.
  const sentinelTls = url.startsWith('rediss') ? { tls: {}, sentinelTLS: {}, ...tls } : {}
  return new Redis({ ...sentinels, ...sentinelTls, ...options })
}

/** Undefined for the URL of a server. `?sentinelPassword=` is for Sentinels that ask for one. */
export function sentinelsOf(url: string): RedisOptions | undefined {
  const match = SENTINEL.exec(url)
  if (match === null) return undefined
  const [, , username, password, hosts = '', db, query, name = ''] = match
  const sentinelPassword = new URLSearchParams(query).get('sentinelPassword')
  return {
    sentinels: hosts.split(',').map((place) => {
      const { hostname, port } = new URL(`redis://${place}`)
      return { host: hostname, port: Number(port || SENTINEL_PORT) }
    }),
    name: decodeURIComponent(name),
    ...(username ? { username: decodeURIComponent(username) } : {}),
    ...(password ? { password: decodeURIComponent(password) } : {}),
    ...(db ? { db: Number(db) } : {}),
    ...(sentinelPassword ? { sentinelPassword } : {}),
  }
}
