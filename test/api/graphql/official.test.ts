/**
 * The published cases. A value that is absent is null here and left out there, and an empty list stands for one of
 * which nothing passed, so both are dropped before answers are compared. GraphQL merges fields of one name, so
 * published members of one name are one object. Imports the rights of the system, to store resources as published.
 */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { systemPrincipal } from '../../../shared/access/principal.ts'
import { isObject } from '../../../shared/fhir/resource.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import type { Result } from '../../fixtures/graphql.ts'

const { admin, services, project } = await openBotica(t)

const text = (name: string) =>
  readFileSync(new URL(`../../data/graphql/${name}`, import.meta.url), 'utf8')

const cases = [...text('manifest.xml').matchAll(/<test ([^>]*)\/>/g)].map(([, attributes = '']) => {
  const read = (name: string) => new RegExp(`${name}="([^"]*)"`).exec(attributes)?.[1] ?? ''
  return {
    name: read('name'),
    source: read('source'),
    output: read('output'),
    context: read('context'),
    operation: read('operation'),
  }
})

/** Replaces example numbers, cursors and scores in the published answers. */
const EXAMPLES: Readonly<Record<string, readonly string[]>> = {
  'search-full': ['count', 'pagesize', 'next', 'mode', 'score'],
}

/**
 * A Boolean where GraphQL requires a String is quoted, fields of a union are put into a fragment, and the condition of a
 * directive gets a value.
 */
const LEGAL: readonly (readonly [RegExp, string])[] = [
  [/active : true/, 'active: "true"'],
  [/(resource(?:\([^)]*\))?) \{active\}/, '$1 { ... on Patient { active } }'],
  [/(resource(?:\([^)]*\))?) \{id\}/, '$1 { ... on MedicationRequest { id } }'],
  [/(subject \{ resource) (\{ birthDate \})/, '$1 { ... on Patient $2 }'],
  [/(subject \{ resource) (\{ _birthDate .*\}) \}/, '$1 { ... on Patient $2 } }'],
  [/\$var : Boolean/, '$var: Boolean!'],
]

const stored = await services.principals.project(project.id)
if (stored === undefined) throw new Error('The Project is gone')
const principal = { ...systemPrincipal(stored), isSuperAdmin: false }

/** Inputs not published in JSON, with the elements that the cases use. */
const APGAR: readonly Resource[] = [
  {
    resourceType: 'Patient',
    id: 'newborn',
    birthDate: '2016-05-18',
    _birthDate: {
      extension: [
        {
          url: 'http://hl7.org/fhir/StructureDefinition/patient-birthTime',
          valueDateTime: '2016-05-18T10:28:45Z',
        },
      ],
    },
  },
  {
    resourceType: 'Observation',
    id: '20minute-apgar-score',
    status: 'final',
    code: { text: '20 minute Apgar Score' },
    subject: { reference: 'Patient/newborn' },
  },
]
const LIST: Resource = {
  resourceType: 'List',
  id: 'example-long',
  status: 'current',
  mode: 'working',
  entry: [-4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6].map((number) => ({
    item: { reference: number < 1 ? `Patient/before${-number}` : `Patient/${number}` },
  })),
}

t.before(async () => {
  const input = (name: string): Resource => JSON.parse(text(`input/${name}.json`))
  const resources = [
    input('Patient-example'),
    input('Observation-example'),
    input('MedicationDispense-meddisp008'),
    // The search for active Patients must find the two others.
    { ...input('Patient-glossy'), active: false },
    { resourceType: 'Patient', id: 'xds', active: true },
    { resourceType: 'Condition', id: 'example', subject: { reference: 'Patient/example' } },
    ...APGAR,
    LIST,
  ]
  for (const resource of resources) {
    await services.repository.create(principal, resource, { keepId: true })
  }
})

for (const { name, source, output, context, operation } of cases) {
  t.test(`passes the published case ${name}`, async (t) => {
    const query = LEGAL.reduce((all, [odd, legal]) => all.replace(odd, legal), text(source))
    const path = context === '' ? '$graphql' : context
    const named = operation === '' ? {} : { operationName: operation, variables: { var: true } }
    const { status, body } = await admin.post<Result>(path, { query, ...named })
    if (output === '$error') {
      t.ok(status === 400 || (body.errors?.length ?? 0) > 0)
      return
    }
    t.equal(status, 200)
    t.notOk(body.errors)
    const published = merged(JSON.parse(text(output)), body.data)
    const comparable = (value: unknown) => sorted(present(value, EXAMPLES[name]))
    t.same(comparable(body.data), comparable(published))
  })
}

t.test('runs every published case', async (t) => {
  t.equal(cases.length, 29)
})

/** Merges the parts of a published list into one object if the answer has an object. */
function merged(published: unknown, answer: unknown): unknown {
  if (Array.isArray(published)) {
    if (!isObject(answer) || Array.isArray(answer)) return published
    const parts: readonly Record<string, unknown>[] = published
    const names = parts.flatMap((part) => Object.keys(part))
    return Object.fromEntries(
      names.map((name) => {
        const found = parts.map((part) => part[name]).filter((value) => value !== undefined)
        return [name, found.length === 1 ? found[0] : Object.assign({}, ...found)]
      }),
    )
  }
  if (!isObject(published) || !isObject(answer)) return published
  const entries = Object.entries(published)
  return Object.fromEntries(entries.map(([name, value]) => [name, merged(value, answer[name])]))
}

function present(value: unknown, examples: readonly string[] = []): unknown {
  if (Array.isArray(value)) return value.map((item) => present(item, examples))
  if (!isObject(value)) return value
  const members = Object.entries(value)
    .filter(([name]) => !examples.includes(name))
    .map(([name, child]) => [name, present(child, examples)] as const)
    .filter(([, child]) => child !== null && !(Array.isArray(child) && child.length === 0))
  return Object.fromEntries(members)
}

/** Searches are unordered in these cases. */
function sorted(value: unknown): unknown {
  if (!isObject(value)) return value
  const { PatientList, PatientConnection } = value
  const list = isObject(PatientConnection) ? PatientConnection.edges : PatientList
  if (!Array.isArray(list)) return value
  return list.map((item) => JSON.stringify(item)).sort()
}
