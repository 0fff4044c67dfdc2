/** Published patients against profiles in the manner of US Core, which a Project has loaded. */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { OperationOutcome, Resource } from '../../fixtures/fhir.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { aPatient, syntheaBundles } from '../../fixtures/resources.ts'
import { cases, notBound, OWN, RACE_SYSTEM } from './us-like-cases.ts'

const PROFILE = `${OWN}/StructureDefinition`

const botica = await openBotica(t)
const { admin } = await botica.createTenant()
const published = (await syntheaBundles()).flatMap(({ entry }) => entry.map((e) => e.resource))

t.test('the definitions are loaded by one transaction', async (t) => {
  const text = await readFile(
    join(import.meta.dirname, '../../data/us-like/profiles.ndjson'),
    'utf8',
  )
  const entry = text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
    .map((resource) => ({ resource, request: { method: 'POST', url: resource.resourceType } }))
  const { status, text: answer } = await admin.post('', {
    resourceType: 'Bundle',
    type: 'transaction',
    entry,
  })
  t.equal(status, 200, answer.slice(0, 500))
})

/** The profile that each published resource is meant to fit. */
function findProfile(resource: Raw): string | undefined {
  if (resource.resourceType === 'Patient') return 'patient'
  if (resource.resourceType !== 'Observation') return undefined
  const code = resource.code.coding[0].code
  const byCode = new Map([
    ['8302-2', 'body-height'],
    ['55284-4', 'blood-pressure'],
    ['72166-2', 'smoking-status'],
  ])
  const category = resource.category[0].coding[0].code
  const byCategory = new Map([
    ['vital-signs', 'vital-signs'],
    ['laboratory', 'observation-lab'],
  ])
  return byCode.get(code) ?? byCategory.get(category)
}

/** Without links into its Bundle. */
function claiming(resource: Resource, profile: string): Raw {
  const { encounter: _, ...copy } = JSON.parse(
    JSON.stringify(resource).replace(/"urn:uuid:[^"]*"/g, '"Patient/published"'),
  )
  return { ...copy, meta: { profile: [`${PROFILE}/${profile}`] } }
}

function example(profile: string): Raw {
  const found = published.find((resource) => findProfile(resource) === profile)
  return claiming(found ?? { resourceType: 'Basic' }, profile)
}

// The generator of the data calls an ethnicity a race.
const HISPANIC = `${RACE_SYSTEM}|2135-2`

t.test('published patients and observations fit their profiles but for one defect', async (t) => {
  const counts = new Map<string, number>()
  for (const resource of published) {
    const profile = findProfile(resource)
    if (profile === undefined) continue
    counts.set(profile, (counts.get(profile) ?? 0) + 1)
    const sent = claiming(resource, profile)
    const { status, body } = await admin.post<OperationOutcome>(sent.resourceType, sent)
    if (!JSON.stringify(sent.extension?.[0] ?? '').includes('2135-2')) {
      t.equal(status, 201, JSON.stringify(body.issue ?? ''))
      continue
    }
    t.equal(status, 400)
    t.match(body.issue, [
      {
        code: 'value',
        details: { text: notBound(HISPANIC, 'race-categories') },
        expression: ['Patient.extension[0].extension[0].valueCoding'],
      },
    ])
  }
  const names = ['patient', 'body-height', 'blood-pressure', 'smoking-status', 'vital-signs']
  for (const name of [...names, 'observation-lab']) t.ok(counts.has(name), name)
})

for (const [name, profile, change, ...expected] of cases) {
  t.test(`rejects ${name} with the path of each fault`, async (t) => {
    const sent = example(profile)
    change(sent)
    const { status, body } = await admin.post<OperationOutcome>(sent.resourceType, sent)
    t.equal(status, 400)
    const found = body.issue.map(({ details, expression }) => [details.text, expression?.[0]])
    t.same(new Set(found.map(String)), new Set(expected.map(String)))
    const validated = await admin.post<OperationOutcome>(`${sent.resourceType}/$validate`, sent)
    t.equal(validated.status, 400)
    const told = validated.body.issue.map(({ details }) => details.text)
    for (const [text] of expected) t.ok(told.includes(text), text)
  })
}

t.test('a Project that takes other codes stores them, and $validate warns, too', async (t) => {
  const plain = await botica.createTenant()
  const path = `Project/${plain.project.id}`
  const { body: stored } = await botica.superAdmin.get(path)
  const setting = [{ name: 'validateTerminology', valueString: 'off' }]
  t.equal((await botica.superAdmin.put(path, { ...stored, setting })).status, 200)
  await until(
    async () => (await plain.admin.post('Patient', aPatient({ gender: 'odd' }))).status === 201,
    60_000,
  )
  const text = await readFile(
    join(import.meta.dirname, '../../data/us-like/profiles.ndjson'),
    'utf8',
  )
  for (const line of text.trim().split('\n')) await plain.admin.create(JSON.parse(line))
  const sent = example('smoking-status')
  sent.valueCodeableConcept.coding[0].code = '1'
  t.equal((await plain.admin.post('Observation', sent)).status, 201)
  const { status, body } = await plain.admin.post<OperationOutcome>('Observation/$validate', sent)
  t.equal(status, 200)
  const fault = { code: 'value', expression: ['Observation.valueCodeableConcept'] }
  t.match(body.issue[1], { severity: 'warning', ...fault })
  sent.category[0].coding[0].code = 'exam'
  t.equal((await plain.admin.post('Observation', sent)).status, 400, 'a slice needs its codes')
})

t.test('a profile is given with all that it needs', async (t) => {
  const path = (url: string) => `StructureDefinition/$expand-profile?url=${encodeURIComponent(url)}`
  const names = (answer: { readonly body: Raw }) =>
    answer.body.entry.map(({ resource }: Raw) => resource.name)
  const patient = await admin.post<Raw>(path(`${PROFILE}/patient`), {})
  t.match(patient, { status: 200, body: { resourceType: 'Bundle', type: 'searchset' } })
  const extensions = ['UsLikeRace', 'UsLikeEthnicity', 'UsLikeBirthsex']
  t.same(names(patient).slice(0, 1), ['UsLikeCorePatient'])
  t.same(new Set(names(patient)), new Set(['UsLikeCorePatient', ...extensions]))
  const pressure = await admin.get<Raw>(path(`${PROFILE}/blood-pressure|1.0.0`))
  t.same(names(pressure), ['UsLikeCoreBloodPressure', 'UsLikeVitalSigns'])
  t.equal((await admin.get(path(`${PROFILE}/blood-pressure|2.0.0`))).status, 404)
  t.equal((await admin.get('StructureDefinition/$expand-profile')).status, 400)
  const stranger = await botica.createTenant()
  t.equal((await stranger.admin.get(path(`${PROFILE}/patient`))).status, 404)
})

t.test('applies a changed value set immediately', async (t) => {
  const url = `${OWN}/ValueSet/smoking-status`
  const found = await admin.get<Raw>(`ValueSet?url=${url}`)
  const valueSet = found.body.entry[0].resource
  const sent = example('smoking-status')
  sent.valueCodeableConcept.coding[0].code = '2'
  t.equal((await admin.post('Observation', sent)).status, 400)
  valueSet.compose.include[0].concept.push({ code: '2' })
  t.equal((await admin.put(`ValueSet/${valueSet.id}`, valueSet)).status, 200)
  t.equal((await admin.post('Observation', sent)).status, 201)
  await admin.del(`ValueSet/${valueSet.id}`)
  sent.valueCodeableConcept.coding[0].code = '3'
  t.equal((await admin.post('Observation', sent)).status, 201, 'nobody knows')
  const { body } = await admin.post<OperationOutcome>('Observation/$validate', sent)
  const text = `Unknown value set "${url}"`
  t.ok(body.issue.some(({ severity, details }) => severity === 'warning' && details.text === text))
})
