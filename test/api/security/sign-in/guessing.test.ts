/** Imports the limits of guesses, to reach them without waiting. */
import t from 'tap'
import { newTotpSecret } from '../../../../server/identity/auth/mfa.ts'
import { system } from '../../../../shared/access/project-context.ts'
import { anonymousGuess, checkGuess } from '../../../../shared/identity/guesses.ts'
import { createSecurityRequest } from '../../../../shared/projects/security-requests.ts'
import { patchUser } from '../../../../shared/projects/users.ts'
import { oneTimeCode } from '../../../fixtures/accounts.ts'
import { openBotica } from '../../../fixtures/botica.ts'
import { type Answer, basic, type Client, createClient } from '../../../fixtures/client.ts'
import {
  aPerson,
  askToken,
  PASSWORD,
  type Person,
  pkce,
  redeemCode,
} from '../../../fixtures/people.ts'

interface Result {
  readonly login: string
  readonly code: string
  readonly mfaRequired?: boolean
  readonly issue?: { readonly details: { readonly text: string } }[]
}

const NEW_PASSWORD = 'a much better passphrase'
const BURST = 50
const botica = await openBotica(t)
const { anonymous, services, project, baseUrl } = botica
const second = createClient(await botica.startWeb())

const attempt = (email: string, password: string, more: object = {}, client = anonymous) =>
  client.post<Result>('/auth/login', { email, password, ...more })

const onDevice = (email: string, password: string, cookie: string) =>
  anonymous.post<Result>('/auth/login', { email, password }, { Cookie: cookie })

function readDevice({ headers }: Answer<unknown>): string {
  const set = headers.getSetCookie().find((cookie) => cookie.startsWith('botica-device-'))
  return set?.split(';')[0] ?? ''
}

const burst = (ask: (place: number) => Promise<Answer<Result>>) =>
  Promise.all(Array.from({ length: BURST }, (_, place) => ask(place)))

const count = (answers: readonly Answer<Result>[], text: string) =>
  answers.filter(({ body }) => body.issue?.[0]?.details.text === text).length

const refused = (answers: readonly Answer<unknown>[]) =>
  answers.filter(({ status, headers }) => status === 429 && Number(headers.get('retry-after')) > 0)
    .length

/** Sends wrong passwords from unknown devices, without hashing, until they are paused. */
async function pauseStrangers({ email, user }: Pick<Person, 'email' | 'user'>): Promise<void> {
  for (let i = 0; i < 5; i++) {
    await checkGuess(services.redis, anonymousGuess(email), user.id, async () => undefined)
  }
  t.equal((await attempt(email, PASSWORD)).status, 429)
}

/**
 * Counts verified guesses of a burst and of later ones, until one is rejected: a slow process
 * rejects some of the burst because its queue is full.
 */
async function judged(text: string, ask: (place: number) => Promise<Answer<Result>>) {
  const answers = await burst(ask)
  t.equal(count(answers, text) + refused(answers), BURST)
  let sum = count(answers, text)
  while (count([await ask(BURST)], text) > 0) sum += 1
  return sum
}

async function pass(): Promise<void> {
  const keys = await services.redis.keys('botica:guesses-pause:*')
  if (keys.length > 0) await services.redis.del(...keys)
}

async function signedIn({ email }: Person): Promise<Client> {
  const { verifier, asked } = pkce()
  const { body } = await attempt(email, PASSWORD, asked)
  return createClient(baseUrl, (await redeemCode(baseUrl, body.code, verifier)).body.access_token)
}

/** Creates a person with a second factor; `login` starts a sign-in and returns its id. */
async function withFactor() {
  const person = await aPerson(services, project)
  const secret = newTotpSecret()
  const token = () => oneTimeCode(secret, Math.floor(Date.now() / 30_000))
  const enrol = () =>
    patchUser(services.repository, person.user.id, { mfaSecret: secret, mfaEnrolled: true })
  return { ...person, token, enrol }
}

t.test('verifies five of a burst of wrong passwords, across all processes', async (t) => {
  const { email } = await aPerson(services, project)
  const guess = (place: number) =>
    attempt(email, `wrong ${place}`, {}, place % 2 ? anonymous : second)
  t.equal(await judged('Email or password is invalid', guess), 5)
  t.equal((await attempt(email, PASSWORD, {}, second)).status, 429)
})

t.test('counts guesses per User across projects, and for unknown users alike', async (t) => {
  const [other, { email }] = await Promise.all([botica.createTenant(), aPerson(services, project)])
  for (const address of [email, 'nobody@example.org']) {
    const places = [{}, { projectId: project.id }, { projectId: other.project.id }]
    let sum = 0
    for (; (await attempt(address.toUpperCase(), 'wrong', places[sum % 3])).status === 400; sum++);
    t.equal(sum, 5)
  }
})

t.test('increases pauses, and ends them after the right password', async (t) => {
  const person = await aPerson(services, project)
  const { email } = person
  await pauseStrangers(person)
  const pauses: number[] = []
  for (let i = 0; i < 3; i++) {
    pauses.push(Number((await attempt(email, PASSWORD)).headers.get('retry-after')))
    await pass()
    t.equal((await attempt(email, 'wrong again')).status, 400)
  }
  const [first = 0, next = 0, third = 0] = pauses
  t.ok(first > 30 && first <= 60 && next > 90 && next <= 120 && third > 200 && third <= 240)
  await pass()
  t.equal((await attempt(email, PASSWORD)).status, 200)
  t.equal((await attempt(email, 'wrong')).status, 400, 'counts as the first one')
  t.equal((await attempt(email, PASSWORD)).status, 200)
})

t.test('counts a known device separately from strangers', async (t) => {
  const person = await aPerson(services, project)
  const { email } = person
  const cookie = readDevice(await attempt(email, PASSWORD))
  t.match(cookie, /^botica-device-\w+=./)
  await pauseStrangers(person)
  t.equal((await onDevice(email, PASSWORD, cookie)).status, 200)
  t.equal((await attempt(email, PASSWORD)).status, 429, 'does not end the pause of strangers')
  const guess = (place: number) => onDevice(email, `wrong ${place}`, cookie)
  t.equal(await judged('Email or password is invalid', guess), 5)
  t.equal((await onDevice(email, PASSWORD, cookie)).status, 429)
})

t.test('recognizes a device only by a cookie of this person and this password', async (t) => {
  const [victim, attacker] = [await aPerson(services, project), await aPerson(services, project)]
  const own = readDevice(await attempt(victim.email, PASSWORD))
  const foreign = readDevice(await attempt(attacker.email, PASSWORD))
  const [name = ''] = own.split('=')
  const client = await signedIn(victim)
  const passwords = { oldPassword: PASSWORD, newPassword: NEW_PASSWORD }
  const headers = { Cookie: own }
  const changed = await client.post('/auth/changepassword', passwords, headers)
  t.equal(changed.status, 200)
  await pauseStrangers(victim)
  const [, value = ''] = foreign.split('=')
  for (const cookie of [own, foreign, `${name}=${value}`, `${own}x`, `${name}=a.b.c.d`]) {
    t.equal((await onDevice(victim.email, NEW_PASSWORD, cookie)).status, 429)
  }
  t.equal((await onDevice(victim.email, NEW_PASSWORD, readDevice(changed))).status, 200)
})

t.test(
  'allows a hundred wrong guesses per address over all accounts, without known devices',
  async (t) => {
    const { email } = await aPerson(services, project)
    const cookie = readDevice(await attempt(email, PASSWORD))
    const [key = ''] = await services.redis.keys('botica:guesses-of:*')
    await services.redis.set(key, 99, 'EX', 900)
    t.equal((await attempt(email, PASSWORD)).status, 200)
    t.equal((await attempt('nobody-at-all@example.org', PASSWORD)).status, 400)
    const refused = await attempt(email, PASSWORD)
    t.equal(refused.status, 429)
    t.ok(Number(refused.headers.get('retry-after')) > 600)
    t.equal((await onDevice(email, PASSWORD, cookie)).status, 200)
    await services.redis.del(key)
  },
)

t.test('accepts a mailed link while strangers guess', async (t) => {
  const person = await aPerson(services, project)
  const { email, user } = person
  await pauseStrangers(person)
  const link = await createSecurityRequest(services.repository, system, { type: 'reset', user })
  const set = await anonymous.post('/auth/setpassword', { ...link, password: NEW_PASSWORD })
  t.equal(set.status, 200)
  t.equal((await attempt(email, NEW_PASSWORD)).status, 200)
  t.equal((await onDevice(email, NEW_PASSWORD, readDevice(set))).status, 200)
})

t.test('verifies five of a burst of wrong second factors, over all logins', async (t) => {
  const { email, token, enrol } = await withFactor()
  const cookieWithout = readDevice(await attempt(email, PASSWORD))
  await enrol()
  const logins: string[] = []
  for (let i = 0; i < 4; i++) logins.push((await attempt(email, PASSWORD)).body.login)
  const guess = (login: string | undefined, value: string, cookie = '') =>
    anonymous.post<Result>('/auth/mfa/verify', { login, token: value }, { Cookie: cookie })
  const answers = await burst((place) => guess(logins[place % 3], '000000'))
  t.equal(count(answers, 'Invalid MFA token'), 5)
  t.equal(answers.filter(({ status }) => status === 200).length, 0)
  const right = await guess(logins[3], token())
  t.equal(right.status, 429, 'rejects even the right one from a fresh login')
  t.equal((await guess(logins[3], token(), cookieWithout)).status, 429)
})

t.test('lets a known device use its factor while strangers guess', async (t) => {
  const { email, token, enrol } = await withFactor()
  await enrol()
  const begin = async () => (await attempt(email, PASSWORD)).body.login
  const first = await begin()
  const verify = (login: string, value: string, cookie = '') =>
    anonymous.post<Result>('/auth/mfa/verify', { login, token: value }, { Cookie: cookie })
  const known = await verify(first, token())
  t.match(known, { status: 200, body: { code: String } })
  const guessed = await begin()
  for (let i = 0; i < 5; i++) await verify(guessed, '000000')
  const login = await begin()
  t.equal((await verify(login, '000000')).status, 429)
  t.match((await verify(login, '000000', readDevice(known))).body.issue, [
    { details: { text: 'Invalid MFA token' } },
  ])
})

t.test('counts password and factor checks of sessions separately', async (t) => {
  const { enrol, token, ...person } = await withFactor()
  const client = await signedIn(person)
  await enrol()
  await pauseStrangers(person)
  const change = (oldPassword: string) =>
    client.post<Result>('/auth/changepassword', { oldPassword, newPassword: NEW_PASSWORD })
  t.equal(await judged('Incorrect password', (place) => change(`wrong ${place}`)), 5)
  const disable = (value: string) => client.post<Result>('/auth/mfa/disable', { token: value })
  t.equal((await disable(token())).status, 200)
})

t.test('verifies five of a burst of guesses of one mailed link', async (t) => {
  const { user } = await aPerson(services, project)
  const { id } = await createSecurityRequest(services.repository, system, {
    type: 'verify-email',
    user,
  })
  const answers = await burst((place) =>
    anonymous.post<Result>('/auth/verifyemail', { id, secret: String(place).repeat(16) }),
  )
  t.equal(count(answers, 'Incorrect secret'), 5)
  t.equal(count(answers, 'Already used'), BURST - 5)
})

t.test(
  'allows sixty guesses of a client secret a minute, at the token endpoint and the API',
  async (t) => {
    const [one, other] = [await botica.createMember(), await botica.createMember()]
    const token = (id: string, secret: string) =>
      askToken(baseUrl, { grant_type: 'client_credentials', client_id: id, client_secret: secret })
    const direct = (id: string, secret: string) => anonymous.get('Patient', basic(id, secret))
    const guesses = async () =>
      await Promise.all(
        Array.from({ length: 100 }, (_, place) =>
          place % 2 ? token(one.id, `wrong ${place}`) : direct(one.id, `wrong ${place}`),
        ),
      )
    let answers = await guesses()
    if (refused(answers) < 40) answers = await guesses()
    t.ok(refused(answers) >= 40)
    t.equal((await direct(other.id, other.secret)).status, 200)
    t.equal((await token(other.id, other.secret)).status, 200)
  },
)
