import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { type Bundle, syntheaTexts } from '../../fixtures/resources.ts'
import { content, type Exact, exact } from './exact.ts'

const { admin, baseUrl } = await openBotica(t)

interface Answered extends Resource {
  readonly total?: number
  readonly link?: readonly { readonly relation: string; readonly url: string }[]
  readonly entry?: readonly {
    readonly resource: Resource
    readonly response: { readonly status: string; readonly location: string }
  }[]
}

/** Only as deep as the raw JSON of the test data goes; this file reads it by hand. */
// biome-ignore lint/suspicious/noExplicitAny: expectations are computed without the product's types
type Raw = any

/** A published resource under the id it got, its links pointing at ids. */
interface Stored {
  readonly type: string
  readonly id: string
  readonly text: string
  readonly json: Raw
}

const all: Stored[] = []

/** Every fullUrl of the text → its reference after the import. */
function linked(text: string, places: ReadonlyMap<string, string>): string {
  return text.replace(/urn:uuid:[0-9a-f-]{36}/g, (urn) => places.get(urn) ?? urn)
}

t.test('published bundles are posted as they are and stored whole', async (t) => {
  for (const text of await syntheaTexts()) {
    const bundle: Bundle = JSON.parse(text)
    const { status, body } = await admin.post<Answered>('', text, {
      'Content-Type': 'application/fhir+json',
    })
    t.equal(status, 200)
    const answers = body.entry ?? []
    t.equal(answers.length, bundle.entry.length)
    t.ok(answers.every(({ response }) => response.status === '201'))
    const places = new Map(
      bundle.entry.map(({ fullUrl }, i) => [fullUrl, answers[i]?.response.location ?? '']),
    )
    const entries = exact(text).entry as { resource: Exact }[]
    bundle.entry.forEach(({ resource }, i) => {
      const [type = '', id = ''] = answers[i]?.response.location.split('/') ?? []
      t.equal(type, resource.resourceType)
      const sent = linked(JSON.stringify(content(entries[i]?.resource ?? {})), places)
      all.push({ type, id, text: sent, json: JSON.parse(linked(JSON.stringify(resource), places)) })
    })
  }
  t.equal(all.length, 412)
})

t.test('each is read back as published, its links resolved', async (t) => {
  const ids = new Set(all.map(({ type, id }) => `${type}/${id}`))
  t.equal(ids.size, all.length)
  for (const { type, id, text } of all) {
    const answer = await admin.get(`${type}/${id}`)
    t.strictSame(content(answer.text), JSON.parse(text), `${type} is as published`)
    t.notMatch(answer.text, 'urn:uuid')
    const found = answer.text.matchAll(/"reference":"([^"#]+)"/g)
    const references = Array.from(found, ([, reference = '']) => reference)
    const dead = references.filter((reference) => !ids.has(reference))
    t.same(dead, [])
  }
})

/** Ids of all pages. */
async function idsFound(path: string): Promise<string[]> {
  const ids: string[] = []
  let next: string | undefined = `${baseUrl}fhir/R4/${path}`
  while (next !== undefined) {
    const { status, body, text }: { status: number; body: Answered; text: string } =
      await admin.get<Answered>(next)
    if (status !== 200) throw new Error(`${next} answered ${status}: ${text}`)
    for (const { resource } of body.entry ?? []) ids.push(resource.id ?? '')
    next = body.link?.find(({ relation }) => relation === 'next')?.url
  }
  return ids.sort()
}

function idsWhere(type: string, isWanted: (json: Raw) => boolean): string[] {
  return all
    .filter((stored) => stored.type === type && isWanted(stored.json))
    .map(({ id }) => id)
    .sort()
}

const types = () => [...new Set(all.map(({ type }) => type))]
const query = (name: string, value: string) => `${name}=${encodeURIComponent(value)}`

t.test('returns the counts by type of the bundles', async (t) => {
  for (const type of types()) {
    const { body } = await admin.get<Answered>(`${type}?_summary=count`)
    t.equal(body.total, idsWhere(type, () => true).length, type)
  }
})

t.test('a search by patient finds all resources of the patient', async (t) => {
  const patients = all.filter(({ type }) => type === 'Patient')
  const clinical = types().filter((type) => !/^(Patient|Practitioner|Organization)$/.test(type))
  t.equal(clinical.length, 9)
  for (const patient of patients) {
    const reference = `Patient/${patient.id}`
    for (const type of clinical) {
      const ids = idsWhere(type, (json) => (json.subject ?? json.patient).reference === reference)
      t.same(await idsFound(`${type}?patient=${patient.id}&_count=20`), ids, type)
      t.same(await idsFound(`${type}?patient=${reference}`), ids, type)
    }
    const whole = `${baseUrl}fhir/R4/${reference}`
    const ids = idsWhere('Observation', (json) => json.subject.reference === reference)
    t.same(await idsFound(`Observation?${query('subject', whole)}`), ids, 'by its address')
  }
})

t.test('a search by encounter finds all resources of the encounter', async (t) => {
  for (const encounter of all.filter(({ type }) => type === 'Encounter')) {
    const reference = `Encounter/${encounter.id}`
    for (const type of ['Observation', 'Condition', 'Procedure']) {
      const ids = idsWhere(type, (json) => json.encounter?.reference === reference)
      t.same(await idsFound(`${type}?encounter=${reference}`), ids, type)
    }
  }
})

const CODES: [type: string, parameter: string, element: string][] = [
  ['Observation', 'code', 'code'],
  ['Condition', 'code', 'code'],
  ['Procedure', 'code', 'code'],
  ['DiagnosticReport', 'code', 'code'],
  ['MedicationRequest', 'code', 'medicationCodeableConcept'],
  ['Immunization', 'vaccine-code', 'vaccineCode'],
]

t.test('a search by code finds each use of it, with and without the system', async (t) => {
  for (const [type, parameter, element] of CODES) {
    const codings: Raw[] = all
      .filter((stored) => stored.type === type)
      .flatMap(({ json }) => json[element].coding)
    const distinct = new Map(codings.map((coding) => [`${coding.system}|${coding.code}`, coding]))
    t.ok(distinct.size > 0, type)
    for (const [token, { code }] of distinct) {
      const has = (isIt: (coding: Raw) => boolean) =>
        idsWhere(type, (json) => json[element].coding.some(isIt))
      const exactly = has((coding) => `${coding.system}|${coding.code}` === token)
      t.same(await idsFound(`${type}?${query(parameter, token)}`), exactly, token)
      const anywhere = has((coding) => coding.code === code)
      t.same(await idsFound(`${type}?${query(parameter, code)}`), anywhere, code)
    }
  }
})

t.test('a search by identifier finds its one resource', async (t) => {
  let count = 0
  for (const { type, id, json } of all) {
    const identifiers: Raw[] = Array.isArray(json.identifier) ? json.identifier : []
    for (const { system, value } of identifiers) {
      const ids = idsWhere(type, (other) =>
        other.identifier?.some((own: Raw) => own.system === system && own.value === value),
      )
      t.ok(ids.includes(id))
      t.same(await idsFound(`${type}?${query('identifier', `${system}|${value}`)}`), ids, value)
      count++
    }
  }
  t.ok(count > 20)
})

t.test('a search by name matches the beginnings of names', async (t) => {
  const begins = (value: string | undefined, start: string) =>
    value?.toLowerCase().startsWith(start.toLowerCase()) ?? false
  for (const { json } of all.filter(({ type }) => type === 'Patient')) {
    const { family, given } = json.name[0]
    const start = family.slice(0, 3).toUpperCase()
    const families = (wanted: string) =>
      idsWhere('Patient', (other) => other.name.some((name: Raw) => begins(name.family, wanted)))
    t.same(await idsFound(`Patient?family=${family}`), families(family), family)
    t.same(await idsFound(`Patient?family=${start}`), families(start), start)
    const named = idsWhere('Patient', (other) =>
      other.name.some((name: Raw) =>
        [name.family, ...name.given].some((part) => begins(part, given[0])),
      ),
    )
    t.same(await idsFound(`Patient?name=${given[0]}`), named, given[0])
    const born = idsWhere('Patient', (other) => other.birthDate === json.birthDate)
    t.same(await idsFound(`Patient?birthdate=${json.birthDate}`), born)
  }
  for (const { json } of all.filter(({ type }) => type === 'Organization')) {
    const ids = idsWhere('Organization', (other) => begins(other.name, json.name))
    t.same(await idsFound(`Organization?${query('name', json.name)}`), ids, json.name)
  }
})

t.test('a search by time and value finds exactly the values above', async (t) => {
  for (const year of [1995, 2005, 2012, 2016, 2018]) {
    const start = Date.parse(`${year}-01-01T00:00:00Z`)
    const later = idsWhere('Observation', (json) => Date.parse(json.effectiveDateTime) >= start)
    t.same(await idsFound(`Observation?date=ge${year}-01-01T00:00:00Z&_count=50`), later)
  }
  for (const limit of [5, 70.5, 120]) {
    const above = idsWhere('Observation', (json) => json.valueQuantity?.value > limit)
    t.same(await idsFound(`Observation?value-quantity=gt${limit}`), above, `gt${limit}`)
    const below = idsWhere('Observation', (json) => json.valueQuantity?.value <= limit)
    t.same(await idsFound(`Observation?value-quantity=le${limit}`), below, `le${limit}`)
  }
})
