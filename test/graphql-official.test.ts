/**
 * The published cases. A value that is absent is null here and left out there, and an empty list stands
 * for one of which nothing passed, so both are dropped before answers are compared.
 */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { systemPrincipal } from '../shared/access/principal.ts'
import { isObject, type Resource } from '../shared/fhir/resource.ts'
import { openBotica } from './fixtures/botica.ts'
import type { Result } from './fixtures/graphql.ts'

const { admin, services, project } = await openBotica(t)

const text = (name: string) =>
  readFileSync(new URL(`data/graphql/${name}`, import.meta.url), 'utf8')

interface Case {
  readonly name: string
  readonly source: string
  readonly output: string
  readonly context: string
}

const cases = [...text('manifest.xml').matchAll(/<test ([^>]*)\/>/g)].map(([, attributes = '']) => {
  const read = (name: string) => new RegExp(`${name}="([^"]*)"`).exec(attributes)?.[1] ?? ''
  return {
    name: read('name'),
    source: read('source'),
    output: read('output'),
    context: read('context'),
  }
})

/** What the standard of GraphQL itself forbids in them, or what they need that is not there. */
const NOT_RUN: Readonly<Record<string, string>> = {
  'extension-simple': 'two members of one name in the answer',
  'directive-variable': 'a nullable variable where a value must be, and no value given for it',
  'search-full': 'the answer is an example: its count, page and score are nobody’s',
  'list-sub': 'its input is not among the published examples in JSON',
}

/** Names where GraphQL wants a String or an ID are quoted, fields of a union put into a fragment. */
const LEGAL: readonly (readonly [RegExp, string])[] = [
  [/type : (\w+)/, 'type: "$1"'],
  [/\(id: example\)/, '(id: "example")'],
  [/active : true/, 'active: "true"'],
  [/(resource(?:\([^)]*\))?) \{active\}/, '$1 { ... on Patient { active } }'],
  [/(resource(?:\([^)]*\))?) \{id\}/, '$1 { ... on MedicationRequest { id } }'],
]

const stored = await services.principals.project(project.id)
if (stored === undefined) throw new Error('The Project is gone')
const principal = { ...systemPrincipal(stored), isSuperAdmin: false }

t.before(async () => {
  const input = (name: string): Resource => JSON.parse(text(`input/${name}.json`))
  const resources = [
    input('Patient-example'),
    input('Observation-example'),
    input('MedicationDispense-meddisp008'),
    // The search for active Patients is to find two others.
    { ...input('Patient-glossy'), active: false },
    { resourceType: 'Patient', id: 'xds', active: true },
    { resourceType: 'Condition', id: 'example', subject: { reference: 'Patient/example' } },
  ]
  for (const resource of resources) {
    await services.repository.create(principal, resource, { keepId: true })
  }
})

for (const { name, source, output, context } of cases) {
  const reason = NOT_RUN[name]
  t.test(`published case: ${name}`, { skip: reason ?? false }, async (t) => {
    const query = LEGAL.reduce((all, [odd, legal]) => all.replace(odd, legal), text(source))
    const path = context === '' ? '$graphql' : context
    const { status, body } = await admin.post<Result>(path, { query })
    if (output === '$error') {
      t.ok(status === 400 || (body.errors?.length ?? 0) > 0)
      return
    }
    t.equal(status, 200)
    t.notOk(body.errors)
    t.same(sorted(present(body.data)), sorted(present(JSON.parse(text(output)))))
  })
}

t.test('the cases that are not run are cases, and few', async (t) => {
  const names = cases.map(({ name }: Case) => name)
  t.ok(Object.keys(NOT_RUN).every((name) => names.includes(name)))
  t.equal(names.length - Object.keys(NOT_RUN).length, 25)
})

function present(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(present)
  if (!isObject(value)) return value
  const members = Object.entries(value)
    .map(([name, child]) => [name, present(child)] as const)
    .filter(([, child]) => child !== null && !(Array.isArray(child) && child.length === 0))
  return Object.fromEntries(members)
}

/** Searches have no order of their own in these cases. */
function sorted(value: unknown): unknown {
  if (!isObject(value) || !Array.isArray(value.PatientList)) return value
  const list = value.PatientList.filter(isObject)
  return { PatientList: list.sort((a, b) => String(a.id).localeCompare(String(b.id))) }
}
