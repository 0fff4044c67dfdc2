import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, execute, type Untyped } from '../../../fixtures/bots/bots.ts'
import type { Resource } from '../../../fixtures/fhir.ts'
import { syntheaBundles } from '../../../fixtures/resources.ts'
import { openSdk } from '../../../fixtures/sdk.ts'

const botica = await openBotica(t, { worker: true })
const { admin } = botica
const sdk = await openSdk(botica)

/**
 * Calls whose results are compared between the bot's client and the SDK over HTTP. `m` is the
 * client, `x` the fixtures; a call that writes has separate fixtures on each side.
 */
const calls: Readonly<Record<string, string>> = {
  readResource: `m.readResource('Patient', x.patient)`,
  'readResource of a missing resource': `m.readResource('Patient', 'a1b2c3')`,
  'readResource without id': `m.readResource('Patient', '')`,
  'readResource of an unknown type': `m.readResource('Patent', '1')`,
  'readResource of a deleted resource': `m.readResource('Basic', x.gone)`,
  readReference: `m.readReference({ reference: 'Patient/' + x.patient })`,
  'readReference to the system': `m.readReference({ reference: 'system' })`,
  'readReference without reference': `m.readReference({ display: 'x' })`,
  'readReference to a search': `m.readReference({ reference: 'Patient?name=x' })`,
  readHistory: `m.readHistory('Basic', x.changed)`,
  'readHistory with options': `m.readHistory('Basic', x.changed, { count: 1, offset: 1 })`,
  readVersion: `m.readVersion('Basic', x.changed, '1')`,
  'readVersion that is not there': `m.readVersion('Basic', x.changed, '77')`,
  readCanonical: `m.readCanonical('ValueSet', 'https://example.com/colours')`,
  'readCanonical of several types': `m.readCanonical(['Questionnaire', 'ValueSet'], 'https://example.com/colours')`,
  'readCanonical of nothing': `m.readCanonical('ValueSet', 'https://example.com/nothing')`,
  'search by text': `m.search('Observation', 'code=http://loinc.org|8302-2&_sort=date&_count=2')`,
  'search by text with a question mark': `m.search('Observation', '?code=8302-2&_count=1')`,
  'search by object': `m.search('Encounter', { subject: 'Patient/' + x.patient, _count: 2, _sort: 'date', status: undefined })`,
  'search by pairs': `m.search('Observation', [['date', 'ge2000'], ['date', 'lt2030'], ['_count', '1'], ['_sort', '_id']])`,
  'search by parameters': `m.search('Patient', new URLSearchParams({ _id: x.patient }))`,
  'search for all': `m.search('Patient')`,
  'search with total': `m.search('Observation', '_total=accurate&_count=0')`,
  'search with includes': `m.search('Observation', '_include=Observation:subject&_count=1&_sort=_id')`,
  'search that is refused': `m.search('Patient', 'colour=red')`,
  searchOne: `m.searchOne('Patient', { _id: x.patient })`,
  'searchOne of nothing': `m.searchOne('Patient', 'name=nobody-has-this')`,
  searchResources: `m.searchResources('Condition', '_sort=_id&_count=3')`,
  searchResourcePages: `(async () => {
    const pages = []
    for await (const page of m.searchResourcePages('Procedure', '_count=4&_sort=_id')) pages.push(page)
    return pages
  })()`,
  'searchResourcePages of nothing': `(async () => {
    const pages = []
    for await (const page of m.searchResourcePages('Procedure', 'status=unknown')) pages.push(page)
    return pages
  })()`,
  'get by path': `m.get('fhir/R4/Patient/' + x.patient)`,
  'get by path with a slash': `m.get('/fhir/R4/Patient/' + x.patient)`,
  'get by URL': `m.get(m.fhirUrl('Patient', x.patient))`,
  'get of the statement': `m.get('fhir/R4/metadata').then((found) => found.fhirVersion)`,
  'get of an unknown path': `m.get('nowhere/at/all')`,
  graphql: `m.graphql('query Q($id: ID!) { Patient(id: $id) { id name { given } } }', 'Q', { id: x.patient })`,
  'graphql with a mistake': `m.graphql('{ Patient(id: "1") { colour } }')`,
  'graphql without sense': `m.graphql('{')`,
  readPatientEverything: `m.readPatientEverything(x.patient, { headers: {} })`,
  'readPatientEverything of a missing Patient': `m.readPatientEverything('a1b2c3')`,
  readPatientSummary: `m.readPatientSummary(x.patient)`,
  readResourceGraph: `m.readResourceGraph('Patient', x.patient, 'x')`,
  validateResource: `m.validateResource({ resourceType: 'Patient', name: [{ family: 'A' }] })`,
  'validateResource of a bad one': `m.validateResource({ resourceType: 'Patient', gender: 'blue' })`,
  valueSetExpand: `m.valueSetExpand({ url: 'https://example.com/colours', filter: 're', count: 5 })`,
  'executeBot by id': `m.executeBot(x.echo, { a: [1, { b: 'c' }] })`,
  'executeBot by identifier': `m.executeBot({ system: 'https://example.com/bots', value: 'echo' }, 'text', 'text/plain')`,
  'executeBot that throws': `m.executeBot(x.thrower, {})`,
  'executeBot later': `m.executeBot(x.echo, { a: 1 }, undefined,
    { headers: { Prefer: 'respond-async' }, pollStatusOnAccepted: true, pollStatusPeriod: 50 })`,
  fhirUrl: `m.fhirUrl('Patient', x.patient, '$everything')`,
  'fhirUrl of a reference': `m.fhirUrl('Patient/' + x.patient)`,
  fhirSearchUrl: `m.fhirSearchUrl('Patient', { name: 'a b', _count: 2, x: undefined })`,
  'fhirSearchUrl by text': `m.fhirSearchUrl('Patient', '?name=a%20b')`,
  getBaseUrl: `m.getBaseUrl()`,
  getTokenUrl: `[m.getTokenUrl(), m.getAuthorizeUrl(), m.getLogoutUrl()]`,
  getProfile: `m.getProfile()`,
  getProfileAsync: `m.getProfileAsync()`,
  'getProject by name': `[m.getProject().id, m.getProject().name, m.getProject().superAdmin]`,
  getProjectMembership: `[m.getProjectMembership().id, m.getProjectMembership().profile]`,
  getAccessPolicy: `m.getAccessPolicy()`,
  getUserConfiguration: `m.getUserConfiguration()`,
  rights: `[m.isProjectAdmin(), m.isSuperAdmin(), m.isAuthenticated(), m.isLoading()]`,
  getDefaultHeaders: `m.getDefaultHeaders()`,
  getAccessToken: `typeof m.getAccessToken()`,
  'the cache': `[m.getCached('Patient', 'a1'), m.invalidateAll(), m.invalidateSearches('Patient'), m.rateLimitStatus()]`,
  download: `m.download('Binary/' + x.binary)`,
  'download by a signed address': `m.download(x.signed)`,
  createResource: `m.createResource({ resourceType: 'Basic', code: { text: 'a' } })`,
  'createResource of nothing': `m.createResource({ code: { text: 'a' } })`,
  'createResource that is refused': `m.createResource({ resourceType: 'Patient', gender: 5 })`,
  createResourceIfNoneExist: `m.createResourceIfNoneExist(x.person, 'identifier=' + x.identifier)
    .then((first) => m.createResourceIfNoneExist(x.person, 'identifier=' + x.identifier).then((second) => [first, first.id === second.id]))`,
  upsertResource: `m.upsertResource(x.person, { identifier: x.identifier })
    .then((first) => m.upsertResource({ ...x.person, active: true }, 'identifier=' + x.identifier).then((second) => [first, second]))`,
  'upsertResource without a change': `m.upsertResource(x.person, { identifier: x.identifier })
    .then((first) => m.upsertResource(x.person, { identifier: x.identifier }))`,
  updateResource: `m.updateResource({ ...x.basic, code: { text: 'new' } })`,
  'updateResource without a change': `m.updateResource(x.basic)`,
  'updateResource without id': `m.updateResource({ resourceType: 'Basic' })`,
  'updateResource of an old version': `m.updateResource({ ...x.basic, code: { text: 'x' } }, { headers: { 'If-Match': 'W/"9"' } })`,
  patchResource: `m.patchResource('Basic', x.basic.id, [{ op: 'replace', path: '/code/text', value: 'patched' }])`,
  'patchResource with a failed test': `m.patchResource('Basic', x.basic.id, [{ op: 'test', path: '/code/text', value: 'no' }])`,
  deleteResource: `m.deleteResource('Basic', x.basic.id)`,
  'executeBatch of a batch': `m.executeBatch({ resourceType: 'Bundle', type: 'batch', entry: [
    { request: { method: 'POST', url: 'Basic' }, resource: { resourceType: 'Basic', code: { text: 'b' } } },
    { request: { method: 'GET', url: 'Patient/' + x.patient } },
    { request: { method: 'GET', url: 'Patient/a1b2c3' } },
  ] })`,
  'executeBatch of a transaction': `m.executeBatch({ resourceType: 'Bundle', type: 'transaction', entry: [
    { fullUrl: 'urn:uuid:6f1f5f1c-4a39-4b0c-9f7c-9a7ae4e7c001', request: { method: 'POST', url: 'Patient' }, resource: { resourceType: 'Patient' } },
    { request: { method: 'POST', url: 'Basic' }, resource: { resourceType: 'Basic', code: { text: 'b' }, subject: { reference: 'urn:uuid:6f1f5f1c-4a39-4b0c-9f7c-9a7ae4e7c001' } } },
  ] })`,
  'executeBatch that fails': `m.executeBatch({ resourceType: 'Bundle', type: 'transaction', entry: [
    { request: { method: 'PUT', url: 'Patient/a1b2c3' }, resource: { resourceType: 'Basic', id: 'a1b2c3' } },
  ] })`,
  createBinary: `m.createBinary({ data: 'some text', filename: 'a.txt', contentType: 'text/plain' })`,
  'createBinary by arguments': `m.createBinary(new Uint8Array([1, 2, 3]), undefined, 'application/octet-stream')`,
  'createBinary of a Blob': `m.createBinary({ data: new Blob(['abc'], { type: 'text/plain' }), contentType: 'text/plain', securityContext: { reference: 'Patient/' + x.patient } })`,
  'createBinary and download': `m.createBinary({ data: 'é€', contentType: 'text/plain' }).then((binary) => m.download('Binary/' + binary.id))`,
  createAttachment: `m.createAttachment({ data: 'a,b', filename: 'a.csv', contentType: 'text/csv' })`,
  'createAttachment of a document': `m.createAttachment({ data: '<ClinicalDocument xmlns="urn:hl7-org:v3"/>', contentType: 'text/xml' })`,
  createMedia: `m.createMedia({ data: 'abc', filename: 'a.png', contentType: 'image/png', additionalFields: { subject: { reference: 'Patient/' + x.patient } } })`,
  uploadMedia: `m.uploadMedia('abc', 'image/png', 'a.png', { status: 'on-hold' })`,
  createDocumentReference: `m.createDocumentReference({ data: 'abc', filename: 'a.txt', contentType: 'text/plain', additionalFields: { docStatus: 'final' } })`,
  'createComment on a patient': `m.readResource('Patient', x.patient).then((found) => m.createComment(found, 'Hello'))`,
  'createComment on an encounter': `m.searchOne('Encounter', '_sort=_id').then((found) => m.createComment(found, 'Hello'))`,
  'createComment on a request': `m.createComment({ resourceType: 'ServiceRequest', id: 'a1', status: 'active', intent: 'order', subject: { reference: 'Patient/' + x.patient } }, 'Hello')`,
  'post, put, patch and delete': `m.post('fhir/R4/Basic', { resourceType: 'Basic', code: { text: 'p' } }).then(async (made) => [
    made,
    await m.put('fhir/R4/Basic/' + made.id, { ...made, code: { text: 'q' } }),
    await m.patch('fhir/R4/Basic/' + made.id, [{ op: 'remove', path: '/code/text' }, { op: 'add', path: '/code/coding', value: [{ code: 'r' }] }]),
    await m.delete('fhir/R4/Basic/' + made.id),
  ])`,
  sendEmail: `m.sendEmail({ to: 'someone@example.com', subject: 'Hi', text: 'Hello' })`,
  'sendEmail without a recipient': `m.sendEmail({ subject: 'Hi' })`,
}

/** Source of a value that JSON cannot represent; evaluated on both sides. */
const SHAPE = `
async function describeShape(value) {
  if (value === undefined) return 'undefined'
  if (value instanceof URL) return { url: String(value) }
  if (typeof Blob !== 'undefined' && value instanceof Blob) {
    return { text: await value.text(), type: value.type, size: value.size }
  }
  if (Array.isArray(value)) {
    const items = []
    for (const item of value) items.push(await describeShape(item))
    return value.bundle === undefined ? items : { items, bundle: value.bundle }
  }
  return value
}
async function describeOutcome(call, m, x) {
  try {
    return { value: await describeShape(await call(m, x)) }
  } catch (error) {
    return { error: error.message, issues: error.outcome?.issue }
  }
}`

const code = `${SHAPE}
const calls = {
${Object.entries(calls)
  .map(([name, text]) => `${JSON.stringify(name)}: async (m, x) => ${text}`)
  .join(',\n')}
}
exports.handler = async (medplum, { input }) => describeOutcome(calls[input.name], medplum, input.x)`
const local: Untyped = new Function(`${code.replace('exports.handler =', 'return')}`)()

function normal(value: unknown): unknown {
  const text = JSON.stringify(value ?? null)
    .replace(/(storage\/)[^"?]+\?[^"]*/g, '$1signed')
    .replace(/_cursor=[^"&]*/g, '_cursor=c')
    .replace(/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/g, 'uuid')
    .replace(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z/g, 'instant')
    .replace(/"(sent|lastModified)":"[^"]*"/g, '"$1":"time"')
  return JSON.parse(text)
}

const [first] = (await syntheaBundles()) as Untyped[]
const loaded = await admin.post<Untyped>('', first)
const patientAt = first.entry.findIndex(
  ({ resource }: Untyped) => resource.resourceType === 'Patient',
)
const patient = loaded.body.entry[patientAt].response.location.split('/').at(-1)
await admin.create({
  resourceType: 'ValueSet',
  url: 'https://example.com/colours',
  status: 'active',
  compose: {
    include: [{ system: 'https://example.com/c', concept: [{ code: 'red' }, { code: 'blue' }] }],
  },
} as Resource)
const changed = await admin.create({ resourceType: 'Basic', code: { text: '1' } } as Resource)
await admin.put(`Basic/${changed.id}`, { ...changed, code: { text: '2' } })
const gone = await admin.create({ resourceType: 'Basic', code: { text: '1' } } as Resource)
await admin.del(`Basic/${gone.id}`)
const binary = await sdk.createBinary({
  data: 'content',
  filename: 'c.txt',
  contentType: 'text/plain',
})
const identifier = [{ system: 'https://example.com/bots', value: 'echo' }]
const echo = await aBot(botica, 'exports.handler = async (medplum, event) => event.input', {
  fields: { identifier },
})
const thrower = await aBot(botica, `exports.handler = async () => { throw new Error('no') }`)
const bot = await aBot(botica, code, { fields: { runAsUser: true, timeout: 60 } })
const shared = {
  patient,
  changed: changed.id,
  gone: gone.id,
  binary: binary.id,
  signed: binary.url,
  echo,
  thrower,
}

async function prepared(): Promise<Untyped> {
  const value = crypto.randomUUID()
  return {
    ...shared,
    basic: await admin.create({ resourceType: 'Basic', code: { text: 'old' } } as Resource),
    identifier: `https://example.com/ids|${value}`,
    person: { resourceType: 'Patient', identifier: [{ system: 'https://example.com/ids', value }] },
  }
}

for (const name of Object.keys(calls)) {
  t.test(`${name}: returns the same in a bot as the SDK over HTTP`, async (t) => {
    const answer = await execute(admin, bot, { name, x: await prepared() })
    t.equal(answer.status, 200, answer.text.slice(0, 500))
    const expected = await local(sdk, { input: { name, x: await prepared() } })
    // Errors of the SDK's own checks have no outcome; a bot always gets one.
    const isPlain = expected.error !== undefined && expected.issues === undefined
    if (isPlain) delete answer.body.issues
    t.same(normal(answer.body), normal(expected))
  })
}
