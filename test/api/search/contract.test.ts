import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { finished } from '../../fixtures/bots/bots.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  // Workers of other files would take the requests.
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica

async function ask(query: string): Promise<Raw> {
  const { status, body } = await admin.get<Raw>(query)
  if (status !== 200) throw new Error(`${query}: ${JSON.stringify(body)}`)
  return body
}

const idsIn = (body: Raw): string[] => (body.entry ?? []).map((entry: Raw) => entry.resource.id)
const findLink = (body: Raw, name: string): string | undefined =>
  body.link.find(({ relation }: Raw) => relation === name)?.url

t.test('matches an exact text in the elements of its parameter only', async (t) => {
  const [other, own] = await Promise.all([
    admin.create(aPatient({ name: [{ family: 'ADA', given: ['Ada'] }] })),
    admin.create(aPatient({ name: [{ family: 'Ada', given: ['ADA'] }] })),
  ])
  t.same(idsIn(await ask('Patient?family:exact=Ada')), [own.id])
  t.same(idsIn(await ask('Patient?given:exact=Ada')), [other.id])
  t.same(idsIn(await ask('Patient?_filter=family eq "Ada"')), [own.id])
})

t.test('sorts places by distance', async (t) => {
  const places = { Berlin: [52.52, 13.405], Potsdam: [52.39, 13.06], Paris: [48.85, 2.35] }
  const made: Record<string, string> = {}
  for (const [name, [latitude, longitude]] of Object.entries(places)) {
    const place = { resourceType: 'Location', name, position: { latitude, longitude } }
    made[name] = (await admin.create(place as Resource)).id
  }
  const nowhere = await admin.create({ resourceType: 'Location', name: 'Nowhere' })
  const { Berlin, Potsdam, Paris } = made
  const near = (place: string, sort: string) =>
    `Location?near=${encodeURIComponent(place)}&_sort=${sort}`
  t.same(idsIn(await ask(near('52.5|13.4', 'near'))), [Berlin, Potsdam, Paris])
  t.same(idsIn(await ask(near('52.5|13.4', '-near'))), [Paris, Potsdam, Berlin])
  t.same(idsIn(await ask(near('48|2,52.39|13', 'near'))), [Potsdam, Berlin, Paris])
  t.notOk(idsIn(await ask(near('52.5|13.4', 'near'))).includes(nowhere.id))
  const first = await ask(`${near('52.5|13.4', 'near')}&_count=1`)
  const second = await ask(findLink(first, 'next') ?? '')
  const third = await ask(findLink(second, 'next') ?? '')
  t.same([first, second, third].flatMap(idsIn), [Berlin, Potsdam, Paris])
  t.equal(findLink(third, 'next'), undefined)
  t.equal((await admin.get('Location?_sort=near')).status, 400)
})

t.test('finds deleted resources that were not restored by _deleted', async (t) => {
  const patient = await admin.create(aPatient())
  const reference = `Patient/${patient.id}`
  const made = await Promise.all([1, 2, 3].map(() => admin.create(anObservation(reference))))
  const [one, two, three] = made.map(({ id }) => id)
  await admin.del(`Observation/${one}`)
  await admin.del(`Observation/${two}`)
  await admin.del(`Observation/${three}`)
  await botica.superAdmin.put(`Observation/${three}`, { ...anObservation(reference), id: three })
  const body = await ask('Observation?_deleted=true&_total=accurate')
  t.same(idsIn(body), [two, one])
  t.equal(body.total, 2)
  t.match(body.entry[0], {
    search: { mode: 'match' },
    resource: { resourceType: 'Observation', meta: { versionId: '2' } },
  })
  t.same(idsIn(await ask(`Observation?_deleted=true&_id=${one},${three}`)), [one])
  t.same(idsIn(await ask(`Observation?_deleted=true&_compartment=${reference}`)), [two, one])
  t.same(idsIn(await ask('Observation?_deleted=true&_compartment=Patient/x')), [])
  t.same(idsIn(await ask('Observation?_deleted=true&_lastUpdated=lt2020')), [])
  const page = await ask('Observation?_deleted=true&_sort=_lastUpdated&_count=1')
  t.same([...idsIn(page), ...idsIn(await ask(findLink(page, 'next') ?? ''))], [one, two])
  t.ok(idsIn(await ask('Observation?_deleted=false')).includes(three ?? ''))
  for (const query of ['_deleted=true&code=x', '_deleted=maybe', '_deleted=true&_sort=code']) {
    t.equal((await admin.get(`Observation?${query}`)).status, 400, query)
  }
  const stranger = await botica.createTenant()
  t.same(idsIn((await stranger.admin.get<Raw>('Observation?_deleted=true')).body), [])
})

t.test('accepts cursors of Medplum for an ascending _lastUpdated', async (t) => {
  const made: string[] = []
  for (let i = 0; i < 3; i++)
    made.push((await admin.create({ resourceType: 'Basic', code: { text: 'x' } })).id)
  const all = await ask('Basic?_sort=_lastUpdated')
  t.same(idsIn(all), made)
  const ms = Date.parse(all.entry[1].resource.meta.lastUpdated)
  const after = async (cursor: string) =>
    idsIn(await ask(`Basic?_sort=_lastUpdated&_cursor=${cursor}`))
  t.same(await after(`1-${ms}-${made[1]}`), made.slice(1))
  t.same(await after(`2-${ms}-${made[1]}`), made.slice(2))
  t.equal((await admin.get(`Basic?_sort=-_lastUpdated&_cursor=1-${ms}-`)).status, 400)
  t.equal((await admin.get('Basic?_sort=_lastUpdated&_cursor=3-1-')).status, 400)
})

t.test('finds no dated row after one without a date', async (t) => {
  const code = { coding: [{ system: 'urn:contract', code: 'dateless' }] }
  for (const date of [{ effectiveDateTime: '2024-03-01' }, {}, {}])
    await admin.create({ resourceType: 'Observation', status: 'final', code, ...date })
  const list = 'Observation?code=urn:contract|dateless&_sort=date'
  const next = new URL(findLink(await ask(`${list}&_count=2`), 'next') ?? '')
  t.equal(idsIn(await ask(next.href)).length, 1)
  const cursor = `_cursor=${next.searchParams.get('_cursor')}`
  // On every access path: by the keys, and by a walk along the dates.
  const every = 'Observation?_sort=date'
  for (const search of [list, every, 'Observation?status:not=amended&_sort=date'])
    t.same(idsIn(await ask(`${search}&date=ge2024&${cursor}`)), [], search)
})

t.test('ignores case in booleans, and finds no resource without a time or Project', async (t) => {
  const { id } = await admin.create(aPatient({ active: true, name: [{ family: 'Truth' }] }))
  const CASES: [string, string[]][] = [
    ['active=TRUE', [id]],
    ['active=False', []],
    ['_lastUpdated:missing=false', [id]],
    ['_lastUpdated:missing=true', []],
    ['_project:missing=false', [id]],
    ['_project:missing=true', []],
  ]
  for (const [query, expected] of CASES) {
    t.same(idsIn(await ask(`Patient?family=truth&${query}`)), expected, query)
  }
})

t.test('answers an asynchronous search by a worker', async (t) => {
  const { id } = await admin.create(aPatient({ name: [{ family: 'Later' }] }))
  const prefer = { Prefer: 'respond-async' }
  const form = { ...prefer, 'Content-Type': 'application/x-www-form-urlencoded' }
  const searches = [
    await admin.get('Patient?family=later', prefer),
    await admin.get('?_type=Patient,Practitioner&name=later', prefer),
    await admin.post('_search?_type=Patient', 'family=later', form),
    await admin.get(`Patient/${id}/Patient?family=later`, prefer),
    await admin.get(`Patient/${id}/*`, prefer),
    await admin.post(`Patient/${id}/*/_search`, `_id=${id}`, form),
  ]
  for (const { status, headers } of searches) {
    t.equal(status, 202)
    const job = (await finished(admin, headers.get('content-location'))) as Raw
    t.equal(job.status, 'completed')
    const results = job.output.parameter.find(({ name }: Raw) => name === 'results')
    const { text } = await admin.get<Raw>(results.valueReference.reference, { Accept: '*/*' })
    t.match(JSON.parse(text), { type: 'searchset', entry: [{ resource: { id } }] })
  }
})

t.test('takes the system of a code element from its value set', async (t) => {
  const telecom = [{ system: 'email', use: 'work', value: 'Implied@Example.com' }]
  const patient = aPatient({ name: [{ family: 'Implied' }], gender: 'female', telecom })
  const { id } = await admin.create(patient)
  const CASES: [string, string[]][] = [
    ['gender=http://hl7.org/fhir/administrative-gender|female', [id]],
    ['gender=http://hl7.org/fhir/administrative-gender|male', []],
    ['gender=urn:other|female', []],
    ['gender=|female', [id]],
    ['gender:not=http://hl7.org/fhir/administrative-gender|female', []],
    ['_filter=gender eq http://hl7.org/fhir/administrative-gender|female', [id]],
    ['email=work|implied@example.com', [id]],
    ['email=|implied@example.com', [id]],
    ['telecom=work|Implied@Example.com', []],
    ['telecom=email|Implied@Example.com', [id]],
  ]
  for (const [query, expected] of CASES) {
    t.same(idsIn(await ask(`Patient?family=implied&${query}`)), expected, query)
  }
})

t.test('reports every parameter that lenient handling ignores', async (t) => {
  const lenient = { Prefer: 'handling=lenient' }
  const { id } = await admin.create(aPatient({ name: [{ family: 'Lenient' }] }))
  for (const count of [1, 2]) {
    await admin.create(
      anObservation(`Patient/${id}`, { status: count === 1 ? 'final' : 'amended' }),
    )
  }
  const asked = '_include=Observation:nope&_include=Observation:patient&nope=1&_query=x&_count=1'
  let page = (await admin.get<Raw>(`Observation?patient=${id}&${asked}`, lenient)).body
  for (const step of ['first', 'second']) {
    t.equal(page.entry.filter((entry: Raw) => entry.search.mode === 'include').length, 1, step)
    if (step === 'second') break
    t.same(
      page.entry.at(-1).resource.issue.map((told: Raw) => [told.details.text, ...told.expression]),
      [
        ['Invalid include parameter: Observation:nope', '_include'],
        ['Unknown search parameter: nope', 'nope'],
        ['_query is not supported', '_query'],
      ],
    )
    page = await ask(findLink(page, 'next') ?? '')
  }
  const several = `?_type=Observation,Encounter&patient=${id}&${asked}`
  const { body } = await admin.get<Raw>(several, lenient)
  t.match(findLink(body, 'next'), /_include=Observation%3Apatient/)
  t.notMatch(findLink(body, 'self'), /nope|_query/)
})

t.test('ignores a whole join or _filter under lenient handling', async (t) => {
  const lenient = { Prefer: 'handling=lenient' }
  const { id } = await admin.create(aPatient({ name: [{ family: 'Wholly' }] }))
  const UNKNOWN: [string, string, string][] = [
    ['_filter', 'nope eq 1', 'nope'],
    ['_filter', 'family eq x or nope eq 1', 'nope'],
    ['_filter', 'not (family eq Wholly and (nope pr true))', 'nope'],
    ['_filter', 'organization.nope sw x', 'nope'],
    ['_has:Observation:nope:code', 'x', 'nope'],
    ['_has:Observation:patient:nope', 'x', 'nope'],
    ['_has:Observation:patient:_has:AuditEvent:entity:nope', 'x', 'nope'],
    ['_has:Observation:patient:_filter', 'status eq final or nope eq 1', 'nope'],
    ['organization.nope', 'x', 'nope'],
  ]
  for (const [name, value, unknown] of UNKNOWN) {
    const query = `Patient?family=wholly&${new URLSearchParams([[name, value]])}`
    const { body, status } = await admin.get<Raw>(query, lenient)
    t.equal(status, 200, query)
    t.same(idsIn({ entry: body.entry.slice(0, 1) }), [id], query)
    t.match(body.entry.slice(1), [
      {
        search: { mode: 'outcome' },
        resource: {
          issue: [
            { details: { text: `Unknown search parameter: ${unknown}` }, expression: [name] },
          ],
        },
      },
    ])
    t.notMatch(findLink(body, 'self'), /nope/)
    t.equal((await admin.get(query)).status, 400, query)
  }
  for (const filter of ['nope eq 1 and', '(nope eq 1', 'nope xx 1']) {
    t.equal((await admin.get(`Patient?_filter=${filter}`, lenient)).status, 400, filter)
  }
})

const aParameter = {
  resourceType: 'SearchParameter',
  name: 'Own',
  status: 'draft',
  description: 'Of the Project',
  code: 'own',
  type: 'token',
  expression: 'Patient.active',
}

t.test('finds definitions of the standard where the Project has none', async (t) => {
  const urlsIn = (body: Raw): string[] =>
    (body.entry ?? []).map((entry: Raw) => entry.resource.url.replace(/.*\//, ''))
  const parameters = 'http://hl7.org/fhir/SearchParameter'
  const CASES: [string, string[]][] = [
    [`SearchParameter?url=${parameters}/clinical-date`, ['clinical-date']],
    ['SearchParameter?type=date&base=Slot', ['Slot-end', 'Slot-start']],
    ['SearchParameter?base=Slot&code=start', ['Slot-start']],
    ['SearchParameter?code=near&target:missing=true', ['Location-near']],
    ['SearchParameter?code=nope', []],
    ['SearchParameter?base=Slot&derived-from:missing=false', []],
    ['SearchParameter?base=Slot&component.name=x', []],
    ['StructureDefinition?name=Patient', ['Patient']],
    ['StructureDefinition?name=Patient&derivation=constraint', []],
    ['StructureDefinition?type=Observation&derivation=specialization', ['Observation']],
    ['StructureDefinition?type=Observation&name:contains=vitalsi', ['vitalsigns']],
    ['StructureDefinition?type=Slot&_filter=kind eq resource', ['Slot']],
  ]
  for (const [query, expected] of CASES) t.same(urlsIn(await ask(query)), expected, query)
  const whole = urlsIn(await ask('SearchParameter?base=Patient&_count=1000'))
  t.ok(whole.length > 20)
  const pages: string[] = []
  for (let next: string | undefined = 'SearchParameter?base=Patient&_total=accurate'; next; ) {
    const body = await ask(next)
    t.equal(body.total, whole.length)
    t.ok(body.entry.length <= 20)
    pages.push(...urlsIn(body))
    next = findLink(body, 'next')
  }
  t.same(pages, whole)
  t.equal((await ask('SearchParameter?base=Patient&_summary=count')).total, whole.length)
  const own = { ...aParameter, url: `${parameters}/own`, base: ['Patient'] }
  await admin.create(own)
  t.same(urlsIn(await ask('SearchParameter?base=Patient')), ['own'])
  t.same(urlsIn(await ask('SearchParameter?base=Patient&_offset=20')), [])
})

t.test('reads definitions of the standard by their displayed id', async (t) => {
  const hl7 = 'http://hl7.org/fhir'
  const URLS: readonly [string, string][] = [
    ['CodeSystem', `${hl7}/observation-status`],
    ['ConceptMap', `${hl7}/ConceptMap/cm-address-use-v2`],
    ['SearchParameter', `${hl7}/SearchParameter/Patient-name`],
    ['StructureDefinition', `${hl7}/StructureDefinition/Patient`],
    ['StructureDefinition', `${hl7}/StructureDefinition/vitalsigns`],
    ['StructureDefinition', 'https://medplum.com/fhir/StructureDefinition/Bot'],
    ['ValueSet', `${hl7}/ValueSet/observation-status`],
  ]
  for (const [type, url] of URLS) {
    const [entry] = (await ask(`${type}?url=${url}`)).entry ?? []
    const { id, meta, url: shown } = entry?.resource ?? {}
    t.equal(shown, url)
    t.equal(meta?.versionId, '1', url)
    t.ok(Date.parse(meta?.lastUpdated), url)
    t.ok(entry.fullUrl.endsWith(`/fhir/R4/${type}/${id}`), entry.fullUrl)
    t.same((await ask(`${type}/${id}`)).url, url)
    t.same(await ask(`${type}/${id}/_history/1`), entry.resource)
    t.same((await ask(`${type}?_id=${id}`)).entry?.[0]?.resource.url, url)
    t.ok((await admin.put(`${type}/${id}`, entry.resource)).status >= 400, url)
    t.equal((await admin.del(`${type}/${id}`)).status, 404, url)
    t.equal((await admin.get(`Patient/${id}`)).status, 404)
  }
  const expanded = await ask(`ValueSet/$expand?url=${hl7}/ValueSet/observation-status&count=1`)
  t.equal(expanded.id, (await ask(`ValueSet/${expanded.id}`)).id)
  t.equal(expanded.meta.versionId, '1')
  t.equal((await ask(`ValueSet/${expanded.id}/$expand`)).expansion.total, 8)
  const [system] = (await ask(`CodeSystem?url=${hl7}/observation-status`)).entry
  const looked = await ask(`CodeSystem/${system.resource.id}/$lookup?code=final`)
  t.match(looked.parameter, [{ name: 'name', valueString: 'ObservationStatus' }])
})
