/**
 * Tokens by client credentials, beside what cannot be left out of one: a signature and a row; and what
 * a caller of something else feels of fifty people who sign in by password at a time.
 */
import { generateKeyPair, SignJWT } from 'jose'
import pg from 'pg'
import type { Figure } from '../bench.ts'
import { freePort } from '../service.ts'
import { startWeb, stopChild, untilReady } from './children.ts'
import { type Load, measure, openWire } from './load.ts'
import { openStage, type Stage } from './stage.ts'

const CALLERS = 16
const PEOPLE = 50

export async function token(seconds: number): Promise<readonly Figure[]> {
  const port = await freePort()
  const baseUrl = `http://127.0.0.1:${port}/`
  const stage = await openStage({
    PORT: String(port),
    BASE_URL: baseUrl,
    AUTH_RATE_LIMIT_PER_MINUTE: '0',
  })
  const web = startWeb(stage.env)
  try {
    await untilReady(baseUrl, false)
    const ours = await tokens(stage, baseUrl, seconds)
    const limit = await signedRows(stage, seconds)
    const idle = await aliveness(baseUrl, seconds)
    const busy = await whilePeopleSignIn(stage, baseUrl, () => aliveness(baseUrl, seconds))
    return [
      {
        what: 'token by client credentials',
        ours: `${Math.round(ours.perSecond)}/s, p99 ${ours.p99Ms.toFixed(1)} ms`,
        limit: `${Math.round(limit.perSecond)}/s`,
        ratio: (ours.perSecond / limit.perSecond).toFixed(2),
        required: '',
      },
      {
        what: 'p99 of others while 50 people sign in',
        ours: `${busy.p99Ms.toFixed(1)} ms`,
        limit: `${idle.p99Ms.toFixed(1)} ms idle`,
        ratio: (busy.p99Ms / idle.p99Ms).toFixed(2),
        required: 'at most 3',
      },
    ]
  } finally {
    await stopChild(web)
    await stage.close()
  }
}

async function tokens({ config }: Stage, baseUrl: string, seconds: number): Promise<Load> {
  const { superAdminClientId = '', superAdminClientSecret = '' } = config
  const wire = await openWire(baseUrl, CALLERS, '', 'application/x-www-form-urlencoded')
  const form = new URLSearchParams({
    grant_type: 'client_credentials',
    client_id: superAdminClientId,
    client_secret: superAdminClientSecret,
  }).toString()
  const load = await measure(CALLERS, seconds, async (caller) => {
    const { status } = await wire.send(caller, 'POST', '/oauth2/token', form)
    return status === 200
  })
  wire.close()
  return load
}

async function signedRows({ config }: Stage, seconds: number): Promise<Load> {
  const pool = new pg.Pool({ connectionString: config.databaseUrl, max: 4 })
  const { privateKey } = await generateKeyPair('ES256')
  await pool.query('create table bench_login (id bigserial primary key, content text)')
  const content = JSON.stringify({ resourceType: 'Login', scope: 'openid', granted: true })
  const load = await measure(CALLERS, seconds, async () => {
    await pool.query('insert into bench_login (content) values ($1)', [content])
    await new SignJWT({ scope: 'openid' }).setProtectedHeader({ alg: 'ES256' }).sign(privateKey)
    return true
  })
  await pool.query('drop table bench_login')
  await pool.end()
  return load
}

async function aliveness(baseUrl: string, seconds: number): Promise<Load> {
  const wire = await openWire(baseUrl, 1, '', 'application/json')
  const load = await measure(1, seconds, async (caller) => {
    const { status } = await wire.send(caller, 'GET', '/livez', '')
    return status === 200
  })
  wire.close()
  return load
}

async function whilePeopleSignIn(
  { config }: Stage,
  baseUrl: string,
  work: () => Promise<Load>,
): Promise<Load> {
  const body = JSON.stringify({
    email: config.superAdminEmail,
    password: config.superAdminPassword,
  })
  const headers = { 'Content-Type': 'application/json' }
  const signIn = () => fetch(`${baseUrl}auth/login`, { method: 'POST', headers, body })
  const people = Array.from({ length: PEOPLE }, signIn)
  const load = await work()
  await Promise.all(people)
  return load
}
