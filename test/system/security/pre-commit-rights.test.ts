/** A member whose code is asked about what administrators write tries to put something of its own into it. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { deploy, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { asked, switchOn } from '../../fixtures/bots/pre-commit.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), PRE_COMMIT_BOTS: 'true' },
})
const { admin } = botica
const member = await botica.createMember()
await switchOn(botica, botica)

/** An administrator's bot for a type, in which a member has put its own code. */
async function taken(type: string, changes: object): Promise<void> {
  const bot = await asked(botica, type, 'return event.input')
  const code = handler(`return { ...event.input, ...${JSON.stringify(changes)} }`)
  const deployed = await deploy(member.client, bot, code)
  if (deployed.status !== 200) throw new Error(deployed.text)
}

t.test('a pre-commit bot changes nothing guarded without the right to', async (t) => {
  await taken('ClientApplication', { description: 'seen', jwksUri: 'https://evil.example/jwks' })
  await taken('AccessPolicy', { resource: [{ resourceType: '*' }] })
  const client = { resourceType: 'ClientApplication', name: 'App' }
  const made = await admin.post<Untyped>('ClientApplication', client)
  t.match(made, { status: 403, body: { issue: [{ expression: ['ClientApplication.jwksUri'] }] } })
  const policy = { resourceType: 'AccessPolicy', resource: [{ resourceType: 'Patient' }] }
  t.match(await admin.post<Untyped>('AccessPolicy', policy), {
    status: 403,
    body: { issue: [{ details: { text: 'The pre-commit bot has changed AccessPolicy' } }] },
  })
})

t.test('it goes on changing the rest', async (t) => {
  await taken('Organization', { alias: ['seen'] })
  const made = await admin.post<Untyped>('Organization', {
    resourceType: 'Organization',
    name: 'First',
  })
  t.match(made, { status: 201, body: { alias: ['seen'] } })
  await taken('UserConfiguration', { name: 'seen' })
  const option = [{ id: 'fhirQuota', valueInteger: 1 }]
  const configured = await admin.post<Untyped>('UserConfiguration', {
    resourceType: 'UserConfiguration',
    option,
  })
  t.match(configured, { status: 201, body: { name: 'seen', option } })
})
