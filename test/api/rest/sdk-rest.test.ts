import { randomUUID } from 'node:crypto'
import { isProfileLoaded, MedplumClient, OperationOutcomeError } from '@medplum/core'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { anObservation, aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'
import { openSdk } from '../../fixtures/sdk.ts'

const botica = await openBotica(t, { worker: true })
const medplum = await openSdk(botica)
const patient = await medplum.createResource(aPatient())
const path = `Patient/${patient.id}`

const errorText = (error: unknown) =>
  error instanceof OperationOutcomeError ? error.outcome.issue[0]?.details?.text : String(error)

t.test('returns the profile and project of the session', async (t) => {
  t.equal(medplum.getBaseUrl(), botica.baseUrl)
  t.equal(medplum.fhirUrl('Patient').href, `${botica.baseUrl}fhir/R4/Patient`)
  t.match(medplum.fhirSearchUrl('Patient', 'name=x').href, /fhir\/R4\/Patient\?name=x$/)
  t.type(medplum.getAccessToken(), 'string')
  t.equal(medplum.isSuperAdmin(), false)
  t.match(medplum.getProjectMembership(), { admin: true })
  t.match(medplum.getUserConfiguration(), { resourceType: 'UserConfiguration' })
  t.match(medplum.getAccessPolicy(), { resourceType: 'AccessPolicy' })
})

t.test('serves reads from the cache until a change', async (t) => {
  const { baseUrl, adminCredentials } = botica
  const cached = new MedplumClient({ baseUrl, fetch, cacheTime: 60_000 })
  await cached.startClientLogin(adminCredentials.id, adminCredentials.secret)
  const read = await cached.readReference({ reference: path })
  t.equal(read.id, patient.id)
  t.match(cached.getCached('Patient', patient.id), { id: patient.id })
  t.match(cached.getCachedReference({ reference: path }), { id: patient.id })
  cached.invalidateUrl(cached.fhirUrl('Patient', patient.id))
  cached.invalidateSearches('Patient')
  cached.invalidateAll()
})

t.test('returns the issues of a validation', async (t) => {
  t.match(await medplum.validateResource(aPatient() as never), { id: 'ok' })
  const wrong = { resourceType: 'Patient', gender: 7 } as never
  t.match(await medplum.validateResource(wrong).catch(errorText), /Invalid JSON type/)
})

t.test('returns $everything and the history of a patient', async (t) => {
  const observation = await medplum.createResource(anObservation(path) as never)
  const found = await medplum.readPatientEverything(patient.id)
  const ids = found.entry?.map((item: { resource?: { id?: string } }) => item.resource?.id)
  t.ok(ids?.includes(patient.id))
  t.ok(ids?.includes((observation as { id: string }).id))
  const versions = await medplum.readHistory('Patient', patient.id)
  t.equal(versions.total, 1)
})

t.test('finds canonical resources by url and expands value sets', async (t) => {
  const url = `http://example.com/${randomUUID()}`
  const concept = [{ code: 'a', display: 'Alpha' }]
  await medplum.createResource({
    resourceType: 'ValueSet',
    status: 'active',
    url,
    compose: { include: [{ system: 'http://example.com/codes', concept }] },
  })
  t.match(await medplum.readCanonical('ValueSet', url), { resourceType: 'ValueSet', url })
  t.match(await medplum.valueSetExpand({ url, filter: 'alph' }), {
    expansion: { contains: [{ code: 'a', display: 'Alpha' }] },
  })
})

t.test('finds code systems, value sets and maps of the standard by url', async (t) => {
  const { admin } = botica
  const fhir = 'http://hl7.org/fhir'
  t.match(await medplum.readCanonical('ValueSet', `${fhir}/ValueSet/administrative-gender`), {
    resourceType: 'ValueSet',
    status: 'active',
    compose: { include: [{ system: `${fhir}/administrative-gender` }] },
  })
  const url = `${fhir}/administrative-gender`
  const concept = [{ code: 'male' }, { code: 'female' }, { code: 'other' }, { code: 'unknown' }]
  const search = (query: string) => admin.get<Raw>(`CodeSystem?url=${query}`)
  const { body } = await search(`${url}&_total=accurate`)
  t.match(body, { total: 1, entry: [{ resource: { content: 'complete', concept } }] })
  t.equal(body.entry.length, 1)
  t.match((await search(`${url}|4.0.1`)).body.entry, { length: 1 })
  t.equal((await search(`${url}|9`)).body.entry, undefined)
  t.match((await search(`${url}&status=active`)).body.entry, { length: 1 })
  t.equal((await search(`${url}&status=draft`)).body.entry, undefined)
  const part = (await search(`${url}&_elements=url`)).body.entry[0].resource
  t.match(part, { url, meta: { tag: [{ code: 'SUBSETTED' }] } })
  t.notOk(part.concept)
  const loinc = (await search('http://loinc.org')).body.entry[0].resource
  t.match(loinc, { name: /LOINC/ })
  t.notOk('concept' in loinc, 'nothing is empty')
  const map = `${fhir}/ConceptMap/cm-address-use-v2`
  t.match((await admin.get<Raw>(`ConceptMap?url=${map}`)).body.entry, [{ resource: { url: map } }])

  const list = `{ ConceptMapList(url: "${map}") { url group { source } } }`
  const { data } = await medplum.graphql(list)
  t.match(data.ConceptMapList, [{ url: map, group: [{ source: `${fhir}/address-use` }] }])

  const own = { resourceType: 'CodeSystem', url, status: 'draft', content: 'complete', name: 'Own' }
  const { id } = await admin.create(own)
  t.match((await search(url)).body.entry, [{ resource: { id, name: 'Own' } }])
})

t.test('follows a graph definition', async (t) => {
  const name = `graph-${randomUUID().slice(0, 8)}`
  await medplum.createResource({
    resourceType: 'GraphDefinition',
    status: 'active',
    name,
    start: 'Patient',
    link: [{ target: [{ type: 'Observation', params: 'patient={ref}' }] }],
  })
  const bundle = await medplum.readResourceGraph('Patient', patient.id, name)
  t.match(bundle, { resourceType: 'Bundle' })
  t.ok((bundle.entry?.length ?? 0) >= 1)
})

t.test('creates comments, documents and media with their content', async (t) => {
  const comment = await medplum.createComment(patient as never, 'A word')
  t.match(comment, { resourceType: 'Communication', payload: [{ contentString: 'A word' }] })
  const contents = 'text of a document'
  const document = await medplum.createDocumentReference({
    data: contents,
    contentType: 'text/plain',
    filename: 'a.txt',
  })
  const [{ attachment } = {}] = document.content
  const read = await medplum.readResource('DocumentReference', document.id)
  t.equal(attachment?.title, 'a.txt')
  t.equal(await (await medplum.download(read.content[0]?.attachment.url ?? '')).text(), contents)
  const media = await medplum.uploadMedia('film', 'video/mp4', 'a.mp4')
  t.match(media, { resourceType: 'Media', content: { title: 'a.mp4' } })
})

t.test('combines concurrent reads into one batch', async (t) => {
  const { baseUrl, adminCredentials } = botica
  const client = new MedplumClient({ baseUrl, fetch, cacheTime: 0, autoBatchTime: 20 })
  await client.startClientLogin(adminCredentials.id, adminCredentials.secret)
  const found = await Promise.all([
    client.readResource('Patient', patient.id),
    client.search('Patient', `_id=${patient.id}`),
    client.readResource('Patient', randomUUID()).catch(errorText),
  ])
  t.match(found, [{ id: patient.id }, { resourceType: 'Bundle' }, 'Not found'])
})

t.test('polls an asynchronous request to its end', async (t) => {
  const mrn = randomUUID()
  const resource = aPatient({ identifier: [{ system: MRN_SYSTEM, value: mrn }] })
  const entry = [{ request: { method: 'POST', url: 'Patient' }, resource }]
  const job = await medplum.startAsyncRequest(medplum.fhirUrl().href, {
    method: 'POST',
    body: JSON.stringify({ resourceType: 'Bundle', type: 'batch', entry }),
    pollStatusOnAccepted: true,
  })
  t.match(job, { resourceType: 'AsyncJob', status: 'completed' })
  const found = await medplum.searchOne('Patient', `identifier=${MRN_SYSTEM}|${mrn}`)
  t.ok(found)
})

t.test('loads profiles of the standard, alone and with dependencies', async (t) => {
  const core = 'http://hl7.org/fhir/StructureDefinition'
  await medplum.requestProfileSchema(`${core}/bp`, { expandProfile: true })
  await medplum.requestProfileSchema(`${core}/heartrate`)
  t.ok(isProfileLoaded(`${core}/bp`))
  t.ok(isProfileLoaded(`${core}/heartrate`))
  const expand = (url: string) =>
    botica.admin.post<Raw>(`StructureDefinition/$expand-profile?url=${encodeURIComponent(url)}`, {})
  const type = (await expand(`${core}/Patient`)).body
  t.match(type.entry, [{ resource: { kind: 'resource', url: `${core}/Patient` } }])
  t.match((await expand(`${core}/bp|4.0.1`)).body.entry, [{ resource: { url: `${core}/bp` } }])
  t.equal((await expand(`${core}/bp|9`)).status, 404)
  t.equal((await expand(`${core}/Nothing`)).status, 404)
  const search = (query: string) => botica.admin.get<Raw>(`StructureDefinition?${query}`)
  t.match((await search(`url=${core}/bp&_total=accurate`)).body, { total: 1, entry: { length: 1 } })
  t.equal((await search(`url=${core}/bp&name=x`)).body.entry, undefined)
})
