/** Imports the definitions, to cover each type and search parameter. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { resourceTypes, searchParameter } from '../../../shared/fhir/definitions.ts'
import { parseJson } from '../../../shared/fhir/json.ts'
import { isObject } from '../../../shared/fhir/resource.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Answer, Client } from '../../fixtures/client.ts'
import type { OperationOutcome, Resource } from '../../fixtures/fhir.ts'
import { moreR4ExampleTexts, r4Defects, r4ExampleTexts } from '../../fixtures/resources.ts'
import { content, type Exact, exact } from './exact.ts'

const botica = await openBotica(t)
const { admin, superAdmin } = botica
const json = { 'Content-Type': 'application/fhir+json' }
// The content of a Binary lies elsewhere: test/api/binary/binary.test.ts.
const texts = await r4ExampleTexts()
const examples = texts.filter((text) => parseType(text) !== 'Binary')

function parseType(text: string): string {
  return JSON.parse(text).resourceType
}

interface Found extends Resource {
  readonly entry?: readonly { readonly resource: Resource }[]
}

const isSound = (text: string) => !r4Defects.has(parseType(text))
const sound = examples.filter(isSound)
const defective = examples.filter((text) => !isSound(text))

async function inGroups<T>(items: readonly T[], work: (item: T) => Promise<void>): Promise<void> {
  for (let start = 0; start < items.length; start += 8) {
    await Promise.all(items.slice(start, start + 8).map(work))
  }
}

/** The text with members set; numbers keep their digits. */
function withMember(text: string, members: Record<string, unknown>): string {
  return JSON.stringify({ ...(parseJson(text) as Resource), ...members })
}

async function idsFound(client: Client, path: string): Promise<(string | undefined)[]> {
  const { body } = await client.get<Found>(path)
  return (body.entry ?? []).map(({ resource }) => resource.id)
}

/** `identifier=system|value` of the first identifier that has a value and can be searched. */
function identifierQuery(text: string): string | undefined {
  const { resourceType, identifier } = JSON.parse(text)
  if (searchParameter(resourceType, 'identifier') === undefined) return undefined
  const [first] = [identifier ?? []].flat()
  if (!isObject(first) || typeof first.value !== 'string') return undefined
  const escaped = [first.system ?? '', first.value].map((part) =>
    String(part).replace(/[\\,|$]/g, '\\$&'),
  )
  return `identifier=${encodeURIComponent(escaped.join('|'))}`
}

t.test('there is an example of every type of the standard that carries data', async (t) => {
  const given = new Set(texts.map(parseType))
  t.equal(given.size, 140)
  t.same(
    [...given].filter((type) => !resourceTypes.includes(type)),
    [],
  )
})

t.test('rejects official examples with known defects', async (t) => {
  await inGroups(defective, async (text) => {
    const type = parseType(text)
    const { status, body } = await admin.post<OperationOutcome>(type, text, json)
    t.equal(status, 400)
    const found = body.issue.map(({ details, expression }) => `${details.text} at ${expression}`)
    t.same(found, r4Defects.get(type))
  })
})

t.test('every other official example passes and lives its life unharmed', async (t) => {
  await inGroups(sound, async (text) => {
    const type = parseType(text)
    const sent = content(text)
    const made = await admin.post(type, text, json)
    t.equal(made.status, 201, `${type} is created`)
    const { id = '' } = made.body
    const path = `${type}/${id}`
    t.strictSame(content(made.text), sent, `${type} is answered as sent`)
    const read = await admin.get(path)
    t.equal(read.text, made.text, `${type} is read as answered`)
    if (type === 'AuditEvent') {
      t.equal((await admin.put(path, withMember(text, { id }), json)).status, 403, 'append-only')
      return
    }
    const again = await admin.put(path, withMember(text, { id }), json)
    t.equal(again.text, made.text, `${type} sent again makes no version`)

    const language = sent.language === 'de' ? 'fr' : 'de'
    const changed = await admin.put(path, withMember(text, { id, language }), json)
    t.equal(changed.status, 200, `${type} is updated`)
    t.strictSame(content(changed.text), { ...sent, language }, `${type} is changed as sent`)
    const patched = await admin.patch(path, [{ op: 'replace', path: '/language', value: 'es' }])
    t.strictSame(content(patched.text), { ...sent, language: 'es' }, `${type} is patched`)

    t.same(await idsFound(admin, `${type}?_id=${id}`), [id])
    const query = identifierQuery(text)
    if (query !== undefined) t.same(await idsFound(admin, `${type}?${query}`), [id], query)
    await endsWell(type, id, [{ ...sent, language: 'es' }, { ...sent, language }, sent])
  })

  async function endsWell(type: string, id: string, versions: readonly Exact[]): Promise<void> {
    t.equal((await admin.del(`${type}/${id}`)).status, 200, `${type} is deleted`)
    t.equal((await admin.get(`${type}/${id}`)).status, 410, `${type} is gone`)
    t.same(await idsFound(admin, `${type}?_id=${id}`), [], `${type} is found no more`)
    const history = await admin.get(`${type}/${id}/_history`)
    const [deletion, ...rest] = exact(history.text).entry as Exact[]
    t.match(deletion, { request: { method: 'DELETE' }, response: { status: '410' } }, type)
    t.strictSame(
      rest.map(({ resource }) => content(resource as Exact)),
      versions,
      `${type} has its history`,
    )
  }
})

t.test('further official examples are created as they are', async (t) => {
  await inGroups(await moreR4ExampleTexts(), async (text) => {
    const name = `${parseType(text)}/${JSON.parse(text).id}`
    const made = await admin.post(parseType(text), text, json)
    t.equal(made.status, 201, `${name}: ${made.text.slice(0, 500)}`)
    t.strictSame(content(made.text), content(text), name)
  })
})

t.test('a project without strict mode takes every example as it is', async (t) => {
  const lax = await botica.createTenant()
  const { body } = await superAdmin.get(`Project/${lax.project.id}`)
  const settings = await superAdmin.put(`Project/${lax.project.id}`, { ...body, strictMode: false })
  t.equal(settings.status, 200)
  await inGroups(examples, async (text) => {
    const made = await lax.admin.post(parseType(text), text, json)
    t.equal(made.status, 201, parseType(text))
    t.strictSame(content(made.text), content(text), `${parseType(text)} is answered as sent`)
    t.equal((await lax.admin.get(`${parseType(text)}/${made.body.id}`)).text, made.text)
  })
})

const nobody = { reference: 'User/0' }
const job = {
  status: 'completed',
  requestTime: '2026-01-02T03:04:05.678Z',
  request: 'https://example.org/',
}

const person = await superAdmin.create({ resourceType: 'User', firstName: 'Ada', lastName: 'King' })
const practitioner = await admin.create({ resourceType: 'Practitioner' })

/** Required elements of platform types, and of types without an official example. */
const NEEDS: Readonly<Record<string, Record<string, unknown>>> = {
  AccessPolicy: { name: 'Readers', resource: [{ resourceType: 'Patient', readonly: true }] },
  Agent: { name: 'Bridge', status: 'active' },
  AsyncJob: job,
  Bot: { name: 'Echo', runtimeVersion: 'vmcontext', timeout: 5 },
  BulkDataExport: job,
  ClientApplication: { name: 'App', redirectUri: 'https://example.org/' },
  DomainConfiguration: { domain: 'example.org' },
  JsonWebKey: { active: false, alg: 'ES256', kty: 'EC', x: 'AA', y: 'AA' },
  Login: {
    user: nobody,
    authMethod: 'client',
    authTime: '2026-01-02T03:04:05.678Z',
    scope: 'openid',
  },
  Parameters: { parameter: [{ name: 'weight', valueDecimal: 1 }] },
  Project: { name: 'All types', features: ['bots'] },
  ProjectMembership: {
    project: { reference: `Project/${botica.project.id}` },
    user: { reference: `User/${person.id}` },
    profile: { reference: `Practitioner/${practitioner.id}` },
  },
  SmartAppLaunch: { patient: { reference: 'Patient/0' } },
  SubscriptionStatus: { type: 'heartbeat', subscription: { reference: 'Subscription/0' } },
  SubstanceNucleicAcid: { numberOfSubunits: 2 },
  SubstancePolymer: { modification: ['none'] },
  SubstanceProtein: { numberOfSubunits: 2 },
  SubstanceReferenceInformation: { comment: 'None' },
  SubstanceSourceMaterial: { organismName: 'Taxus baccata' },
  User: { firstName: 'Ada', lastName: 'Byron', email: `ada-${randomUUID()}@example.org` },
  UserConfiguration: { name: 'Menu' },
  UserSecurityRequest: { type: 'reset', user: nobody, secret: 'x'.repeat(20) },
}

t.test('a super admin creates, reads, updates and deletes every other type', async (t) => {
  const rest = resourceTypes.filter((type) => !texts.some((text) => parseType(text) === type))
  t.same(Object.keys(NEEDS).sort(), rest)
  await inGroups(rest, async (type) => {
    const text = JSON.stringify({ resourceType: type, ...NEEDS[type] })
    const made = await superAdmin.post(type, text, json)
    t.equal(made.status, 201, `${type} is created`)
    const { id = '' } = made.body
    const path = `${type}/${id}`
    t.match(content(made.text), content(text), type)
    t.equal((await superAdmin.get(path)).text, made.text, `${type} is read as answered`)
    const changed = await superAdmin.put(path, { ...made.body, language: 'de' })
    t.match(changed, { status: 200, body: { language: 'de', meta: { versionId: '2' } } }, type)
    t.same(await idsFound(superAdmin, `${type}?_id=${id}`), [id], type)
    await isDeleted(path, await superAdmin.del(path))
  })

  async function isDeleted(path: string, answer: Answer): Promise<void> {
    t.equal(answer.status, 200, `${path} is deleted`)
    t.equal((await superAdmin.get(path)).status, 410, `${path} is gone`)
  }
})
