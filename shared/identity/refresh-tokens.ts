/** Refresh tokens: one is valid at a time; each use replaces it (RFC 9700 §4.14.2). */
import { hash, randomBytes } from 'node:crypto'
import { seal, sealingKey, unseal } from '../access/credentials/sealing.ts'
import type { Connection } from '../postgres/statement.ts'

/** A client with a lost response, or a second browser tab, may repeat within this time. */
const GRACE_MS = 30_000
const LONGEST_SECONDS = 90 * 86_400
const TOKEN_BYTES = 32

type Rotation =
  | { readonly state: 'replaced'; readonly successor: string }
  | { readonly state: 'reused' | 'unknown' }

/** 256 bits, opaque; only the digest is stored. One statement. */
export async function issueRefreshToken(
  connection: Connection,
  loginId: string,
  lifetimeSeconds: number,
): Promise<string> {
  const token = newToken()
  await connection.query({
    name: 'refresh-token-issue',
    text: `insert into refresh_token (digest, login, expires)
      values ($1, $2, clock_timestamp() + $3::float8 * interval '1 s')`,
    values: [digest(token), loginId, Math.min(lifetimeSeconds, LONGEST_SECONDS)],
  })
  return token
}

/** Returns the Login id; undefined for an unknown or expired token. One statement. */
export async function findLoginByRefreshToken(
  connection: Connection,
  token: string,
): Promise<string | undefined> {
  const [row] = await connection.query<{ login: string }>({
    name: 'refresh-token-login',
    text: 'select login from refresh_token where digest = $1 and expires > clock_timestamp()',
    values: [digest(token)],
  })
  return row?.login
}

/**
 * Replaces the token. Concurrent callers get the same successor for 30 s. A token expires 90 days after the first of
 * its line.
 */
export async function rotateRefreshToken(
  connection: Connection,
  token: string,
  lifetimeSeconds: number,
): Promise<Rotation> {
  const successor = newToken()
  const replaced = await connection.query({
    name: 'refresh-token-rotate',
    text: `
      with used as (
        update refresh_token set replaced = clock_timestamp(), successor = $2
        where digest = $1 and replaced is null and expires > clock_timestamp()
        returning login, began),
      swept as (
        delete from refresh_token where digest in (
          select digest from refresh_token where expires < clock_timestamp() - interval '1 day'
          order by expires limit 10)),
      made as (
        insert into refresh_token (digest, login, began, expires)
        select $3, login, began, least(
          clock_timestamp() + $4::float8 * interval '1 s', began + $5::float8 * interval '1 s')
        from used)
      select 1 from used`,
    values: [
      digest(token),
      seal(successor, successorKey(token)),
      digest(successor),
      lifetimeSeconds,
      LONGEST_SECONDS,
    ],
  })
  if (replaced.length > 0) return { state: 'replaced', successor }
  const [row] = await connection.query<{ successor: Buffer | null; recent: boolean }>({
    name: 'refresh-token-replaced',
    text: `select successor, replaced > clock_timestamp() - $2::float8 * interval '1 ms' as recent
      from refresh_token where digest = $1 and replaced is not null`,
    values: [digest(token), GRACE_MS],
  })
  if (row === undefined || row.successor === null) return { state: 'unknown' }
  if (!row.recent) return { state: 'reused' }
  return { state: 'replaced', successor: unseal(row.successor, successorKey(token)).toString() }
}

function newToken(): string {
  return randomBytes(TOKEN_BYTES).toString('base64url')
}

function digest(token: string): Buffer {
  return hash('sha256', token, 'buffer')
}

/** Derived from the old token: the table alone does not reveal the new one. */
function successorKey(token: string): Buffer {
  return sealingKey(token, 'refresh-token-successor')
}
