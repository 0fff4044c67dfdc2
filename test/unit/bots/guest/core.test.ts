import * as core from '@medplum/core'
import t from 'tap'
import { botModules } from '../../../../shared/bots/modules.ts'
import { openGuest, plain, type Untyped } from '../../../fixtures/bots/guest.ts'
import { cases, outcome } from './core-cases.ts'

const guest = openGuest()
const ours: Untyped = guest.load('./core.cjs')
const theirs: Untyped = core

/** Returns the result or error of a function, with its arguments after the call. */
function answer(library: Untyped, name: string, given: unknown[]): unknown {
  const copies = given.map((value) => (value === undefined ? undefined : structuredClone(value)))
  try {
    const result = library[name](...copies)
    return plain({ result, kind: typeof result, copies })
  } catch (error) {
    return (error as Error).message
  }
}

for (const [name, lists] of Object.entries(cases)) {
  t.test(`${name} returns the same as the SDK`, async (t) => {
    for (const given of lists) {
      t.same(answer(ours, name, given), answer(theirs, name, given), JSON.stringify(given))
    }
  })
}

t.test('exports the constants and outcomes of the SDK', async (t) => {
  const names = ['LOINC', 'SNOMED', 'RXNORM', 'CPT', 'ICD10', 'NDC', 'UCUM', 'ContentType']
  const outcomes = ['allOk', 'created', 'notFound', 'unauthorized', 'forbidden']
  for (const name of [...names, ...outcomes]) t.same(plain(ours[name]), theirs[name], name)
})

t.test('describes an OperationOutcomeError by its outcome', async (t) => {
  for (const value of [outcome, core.notFound, core.badRequest('x', 'y'), { issue: [] }]) {
    const error = new ours.OperationOutcomeError(value, { cause: 1 })
    t.equal(error.message, new theirs.OperationOutcomeError(value).message)
    t.equal(error.name, 'OperationOutcomeError')
    t.equal(error.outcome, value)
    t.equal(error.cause, 1)
    t.equal(ours.normalizeErrorString(error), error.message)
    t.equal(ours.normalizeOperationOutcome(error), value)
  }
})

t.test('generates UUIDs as ids, and waits in sleep', async (t) => {
  t.match(ours.generateId(), /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/)
  await ours.sleep(1)
})

t.test('lists exactly the exports of the modules for deploys', async (t) => {
  const modules = guest.load('./modules.cjs')
  const names = [...modules.names, ...modules.nodeModules.map((name: string) => `node:${name}`)]
  t.same(Object.keys(botModules).sort(), names.sort())
  for (const [name, exported] of Object.entries(botModules)) {
    t.same(exported, Object.keys(modules.resolve(name)).sort(), name)
  }
  for (const name of Object.keys(cases)) t.ok(botModules['@medplum/core']?.includes(name), name)
})
