import { readdirSync, readFileSync } from 'node:fs'
import { gunzipSync } from 'node:zlib'
import * as core from '@medplum/core'
import t from 'tap'
import { botModules, moduleExports, usesLibrary } from '../../../../shared/bots/modules.ts'
import type { Resource } from '../../../../shared/fhir/resource.ts'
import { plain } from '../../../fixtures/bots/guest.ts'
import { aRun, openTestExecutors, run } from '../../../fixtures/bots/runs.ts'

const executors = await openTestExecutors(t)
const folder = new URL('../../../data/synthea/', import.meta.url)

const resources: Resource[] = readdirSync(folder)
  .filter((name) => name.endsWith('.gz'))
  .slice(0, 2)
  .flatMap((name) => {
    const bundle = JSON.parse(gunzipSync(readFileSync(new URL(name, folder))).toString())
    return bundle.entry.map(({ resource }: { resource: Resource }) => resource)
  })

async function runForAnswer(code: string, input: unknown): Promise<unknown> {
  const text = `const core = require('@medplum/core'); exports.handler = async (medplum, event) => {
    const { input } = event; ${code} }`
  const result = await run(
    executors,
    aRun(text, { libraries: ['@medplum/core'], input: JSON.stringify(input) }),
  )
  if (result.status !== 'ok') throw new Error(`${result.body} ${result.log}`)
  return JSON.parse(result.body)
}

const paths = [
  'id',
  'name.given',
  "name.where(use = 'official').given.first() + ' ' + name.family.first()",
  'code.coding.code | code.coding.display',
  'subject.reference',
  'value.value > 100',
  "component.where(code.coding.code = '8480-6').value.value",
  'meta.profile.exists() and id.exists()',
  'birthDate <= today()',
  "identifier.where(type.coding.code = 'MR').value",
  'extension.extension.value',
  'effective.is(dateTime)',
  'descendants().count()',
  '(1.1 + 2.2) * 3',
  'item.sequence.count() + total.value.count()',
]

t.test('evaluates FHIRPath on real resources as the SDK does', async (t) => {
  t.ok(resources.length > 100)
  const given = await runForAnswer(
    `return input.resources.map((resource) => input.paths.map((path) => {
       try { return core.evalFhirPath(path, resource) } catch (error) { return error.message }
     }))`,
    { resources, paths },
  )
  const expected = resources.map((resource) =>
    paths.map((path) => {
      try {
        return core.evalFhirPath(path, resource)
      } catch (error) {
        return (error as Error).message
      }
    }),
  )
  t.same(given, plain(expected))
  t.ok(expected.flat(2).length > resources.length, 'most of them select something')
})

t.test('matches the SDK in typed FHIRPath, searches and checks', async (t) => {
  const searches = [
    'Patient?name=x&_count=3&_sort=-birthdate',
    'https://example.com/Observation?code=a|b,c&date=ge2020&_include=Observation:subject&_total=accurate',
    'Patient?name:contains=x&_elements=id&_fields=a,b&_offset=20',
    'Patient',
  ]
  const variables = { '%place': { type: 'string', value: 'there' } }
  const [patient] = resources
  const typed = [{ type: 'Patient', value: patient }] as core.TypedValue[]
  const given = await runForAnswer(
    `return [
       core.evalFhirPathTyped("name.given | birthDate", input.typed, input.variables),
       core.evalFhirPathTyped("%place", input.typed, input.variables),
       input.searches.map((text) => core.parseSearchRequest(text)),
       core.formatSearchQuery(core.parseSearchRequest(input.searches[0])),
       core.isUUID('x'), core.getPathDisplayName('Patient.birthDate'),
     ]`,
    { typed, variables, searches },
  )
  t.same(
    given,
    plain([
      core.evalFhirPathTyped('name.given | birthDate', typed, variables),
      core.evalFhirPathTyped('%place', typed, variables),
      searches.map((text) => core.parseSearchRequest(text)),
      core.formatSearchQuery(core.parseSearchRequest(searches[0] ?? '')),
      core.isUUID('x'),
      core.getPathDisplayName('Patient.birthDate'),
    ]),
  )
})

t.test('throws library errors of the classes that bots know', async (t) => {
  const given = await runForAnswer(
    `try { core.validateResourceType('Patent') } catch (error) {
       return [error instanceof core.OperationOutcomeError, core.normalizeErrorString(error),
         core.normalizeOperationOutcome(error).resourceType]
     }`,
    {},
  )
  t.match(given, [true, 'Unknown resource type', 'OperationOutcome'])
})

t.test('uses the client and messages of the run in the library', async (t) => {
  const given = await runForAnswer(
    `const message = core.Hl7Message.parse('MSH|^~\\\\&|A')
     return [new core.MedplumClient() instanceof medplum.constructor, message instanceof Hl7Message,
       core.isUUID('x'), Object.keys(core).length]`,
    {},
  )
  t.same(given, [true, true, false, Object.keys(core).length])
})

t.test('imports names of both kinds into an ES module', async (t) => {
  const code = `import { createReference, evalFhirPath } from '@medplum/core'
    export const handler = async (medplum, { input }) =>
      evalFhirPath('reference', createReference(input))`
  const input = JSON.stringify({ resourceType: 'Patient', id: '1' })
  const result = await run(
    executors,
    aRun(code, { libraries: ['@medplum/core'], format: 'module', input }),
  )
  t.same(JSON.parse(result.body), ['Patient/1'])
})

t.test('allows imports of exactly the names of the SDK', async (t) => {
  const names = moduleExports('@medplum/core')
  for (const name of Object.keys(core)) t.ok(names?.has(name), name)
  t.equal(names?.size, Object.keys(core).length)
  t.equal(moduleExports('fs'), undefined)
  t.equal(moduleExports('toString'), undefined)
})

t.test('loads the library only for bots that use names exclusive to it', async (t) => {
  const own = botModules['@medplum/core'] ?? []
  t.notOk(usesLibrary(`const { ${own.join(', ')} } = require('@medplum/core')`))
  t.ok(usesLibrary(`const core = require("@medplum/core"); core.evalFhirPath('a', b)`))
  t.ok(usesLibrary(`import { isUUID } from '@medplum/core'`))
  t.notOk(usesLibrary(`const evalFhirPath = () => isUUID`), 'a bundled library needs no other')
})
