import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { type Client, createClient } from '../../fixtures/client.ts'
import { askToken } from '../../fixtures/people.ts'

const USUAL = 50
const botica = await openBotica(t, {
  env: { RATE_LIMIT_PER_MINUTE: String(USUAL), AUTH_RATE_LIMIT_PER_MINUTE: '1000' },
})
const { services, superAdmin } = botica

/** Creates a Project with these limits. */
async function aProject(settings: Record<string, number>) {
  const tenant = await botica.createTenant()
  const systemSetting = Object.entries(settings).map(([name, valueInteger]) => {
    return { name, valueInteger }
  })
  const path = `Project/${tenant.project.id}`
  const saved = await superAdmin.put(path, { ...tenant.project, systemSetting })
  if (saved.status !== 200) throw new Error(saved.text)
  services.principals.forget()
  return tenant
}

/** Repeats the work if a new minute began meanwhile. */
async function inOneMinute<T>(work: () => Promise<T>): Promise<T> {
  for (;;) {
    const minute = Math.floor(Date.now() / 60_000)
    const done = await work()
    if (Math.floor(Date.now() / 60_000) === minute) return done
  }
}

/** Counts the rejected requests. */
async function refusals(client: Client, path: string, count: number): Promise<number> {
  const ask = () => Promise.all(Array.from({ length: count }, () => client.get(path)))
  const answers = await inOneMinute(ask)
  return answers.filter(({ status }) => status === 429).length
}

const [few, many, none, usual] = [
  await aProject({ rateLimit: 3, authRateLimit: 2 }),
  await aProject({ rateLimit: 100_000 }),
  await aProject({ rateLimit: -1, authRateLimit: -1 }),
  await botica.createTenant(),
]

t.test('a Project can lower the limits of its callers', async (t) => {
  t.ok((await refusals(few.admin, 'Patient?_count=0', 10)) >= 7)
  t.ok((await refusals(few.admin, '/auth/mfa/status', 10)) >= 8)
  const refused = await inOneMinute(async () => {
    await refusals(few.admin, 'Patient?_count=0', 3)
    return few.admin.get('Patient?_count=0')
  })
  t.match(refused, { status: 429, body: { id: 'too-many-requests' } })
  t.match(refused.headers.get('ratelimit'), /^"requests";r=0;t=\d+$/)
  t.match(refused.headers.get('retry-after'), /^\d+$/)
})

t.test('applies a lower limit to sign-in requests as well', async (t) => {
  const { anonymous, baseUrl } = botica
  const [own, other] = [few.adminCredentials, usual.adminCredentials]
  const login = { email: 'nobody@example.org', password: 'of no account' }
  const signIn = (body: object) => anonymous.post('/auth/login', { ...login, ...body })
  const token = (id: string, secret: string) =>
    askToken(baseUrl, {
      grant_type: 'client_credentials',
      client_id: id,
      client_secret: secret,
    })
  const asked = await inOneMinute(async () => {
    await Promise.all(Array.from({ length: 3 }, () => anonymous.post('/auth/method', {})))
    return await Promise.all([
      signIn({ projectId: few.project.id }),
      signIn({ clientId: own.id }),
      token(own.id, own.secret),
      token(own.id, 'wrong'),
      signIn({}),
      token(other.id, other.secret),
    ])
  })
  t.same(
    asked.map(({ status }) => status),
    [429, 429, 429, 429, 400, 200],
  )
  t.match(asked[0], { body: { id: 'too-many-requests' } })
  t.match(asked[2].headers.get('ratelimit'), /^"requests";r=0;t=\d+$/)
})

t.test('raises or removes the limits of a Project by its settings', async (t) => {
  t.ok((await refusals(usual.admin, 'Patient?_count=0', 2 * USUAL)) >= USUAL)
  t.equal(await refusals(many.admin, 'Patient?_count=0', 2 * USUAL), 0)
  t.equal(await refusals(none.admin, 'Patient?_count=0', 2 * USUAL), 0)
})

t.test('applies raised limits only to tokens of the Project', async (t) => {
  const { anonymous } = botica
  t.ok((await refusals(anonymous, '/livez', 2 * USUAL)) >= USUAL)
  const stranger = createClient(botica.baseUrl, 'nonsense')
  t.ok((await refusals(stranger, 'Patient', 2 * USUAL)) >= USUAL)
})
