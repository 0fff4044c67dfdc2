/** Imports security requests, because only the mailbox of a user shows them. */
import './costly-passwords.ts'
import t from 'tap'
import { system } from '../../../../shared/access/project-context.ts'
import { createSecurityRequest } from '../../../../shared/projects/security-requests.ts'
import { openBotica, until } from '../../../fixtures/botica.ts'
import type { Answer } from '../../../fixtures/client.ts'
import { aPerson, PASSWORD } from '../../../fixtures/people.ts'

const MANY = 60
const FLOOD = { 'X-Forwarded-For': '203.0.113.5' }
const ELSEWHERE = { 'X-Forwarded-For': '198.51.100.7' }
const botica = await openBotica(t, { env: { PASSWORD_QUEUE_DEPTH: '1', TRUST_PROXY: 'true' } })
const { anonymous, services, project } = botica

const signIn = (email: string, headers: Record<string, string>) =>
  anonymous.post('/auth/login', { email, password: PASSWORD }, headers)

function flood(email: (place: number) => string) {
  const answers: Answer[] = []
  const all = Promise.all(
    Array.from({ length: MANY }, async (_, place) => {
      const body = { email: email(place), password: `wrong ${place}` }
      answers.push(await anonymous.post('/auth/login', body, FLOOD))
    }),
  )
  return { answers, all }
}

const judged = (answers: readonly Answer[]) => answers.filter(({ status }) => status === 400).length
const refusedWell = (answers: readonly Answer[]) =>
  answers
    .filter(({ status }) => status !== 400)
    .every(({ status, headers }) => status === 429 && headers.get('retry-after') !== null)

t.test('signs in other users during many wrong sign-ins at many accounts', async (t) => {
  const person = await aPerson(services, project)
  const { answers, all } = flood((place) => `nobody-${place}@example.org`)
  await until(async () => answers.length > 0, 60_000)
  const right = await signIn(person.email, ELSEWHERE)
  t.equal(right.status, 200, 'during the flood, without a cookie')
  await all
  t.ok(judged(answers) >= 1)
  t.ok(refusedWell(answers))
})

t.test('signs in a known address reliably during the flood', async (t) => {
  const { email } = await aPerson(services, project)
  t.equal((await signIn(email, FLOOD)).status, 200)
  const before = flood((place) => `anybody-${place}@example.org`)
  const right = signIn(email, FLOOD)
  const after = flood((place) => `somebody-${place}@example.org`)
  t.equal((await right).status, 200)
  await Promise.all([before.all, after.all])
})

t.test('signs in other users during many wrong sign-ins at one account', async (t) => {
  const [victim, person] = [await aPerson(services, project), await aPerson(services, project)]
  const { answers, all } = flood(() => victim.email)
  await until(async () => answers.length > 0, 60_000)
  const right = await signIn(person.email, ELSEWHERE)
  t.equal(right.status, 200)
  await all
  t.ok(judged(answers) <= 5)
  t.ok(refusedWell(answers))
})

t.test('keeps a mailed link valid when there was no capacity', async (t) => {
  const { user } = await aPerson(services, project)
  const link = await createSecurityRequest(services.repository, system, { type: 'reset', user })
  const set = () => anonymous.post('/auth/setpassword', { ...link, password: `${PASSWORD} 2` })
  const { all } = flood((place) => `someone-${place}@example.org`)
  let answer = await set()
  for (; answer.status === 429; answer = await set()) t.ok(answer.headers.get('retry-after'))
  t.equal(answer.status, 200)
  await all
})
