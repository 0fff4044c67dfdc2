/** Value sets of code systems that ignore case. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const { admin } = await openBotica(t)
const own = 'https://example.org/own'
const imported = 'https://example.org/imported'
const strict = 'https://example.org/strict'

const aCodeSystem = (url: string, caseSensitive: boolean, ...codes: string[]) =>
  admin.create({
    resourceType: 'CodeSystem',
    url,
    status: 'active',
    caseSensitive,
    ...(codes.length === 0
      ? { content: 'not-present' }
      : { content: 'complete', concept: codes.map((code) => ({ code })) }),
  } as Raw)

await aCodeSystem(own, false, 'ABC', 'DEF')
await aCodeSystem(strict, true, 'ABC', 'DEF', 'abc')
const { id } = await aCodeSystem(imported, false)
const concepts = ['ABC', 'DEF'].map((code) => ({ name: 'concept', valueCoding: { code } }))
const made = await admin.post(`CodeSystem/${id}/$import`, {
  resourceType: 'Parameters',
  parameter: concepts,
})
t.equal(made.status, 200)

const listed = (system: string, ...codes: string[]) => ({
  system,
  concept: codes.map((code) => ({ code })),
})
const valueSet = (compose: object) => ({ resourceType: 'ValueSet', status: 'active', compose })

async function expandCodes(compose: object): Promise<unknown> {
  const { body } = await admin.post<Raw>('ValueSet/$expand', valueSet(compose))
  return body.expansion.contains?.map(({ code }: Raw) => code)
}

async function isIn(compose: object, system: string, code: string): Promise<unknown> {
  const { body } = await admin.post<Raw>('ValueSet/$validate-code', {
    resourceType: 'Parameters',
    parameter: [
      { name: 'valueSet', resource: valueSet(compose) },
      { name: 'coding', valueCoding: { system, code } },
    ],
  })
  return body.parameter[0].valueBoolean
}

for (const system of [own, imported]) {
  t.test(`listed and excluded codes ignore case (${system})`, async (t) => {
    const excluding = { include: [{ system }], exclude: [listed(system, 'abc')] }
    t.same(await expandCodes(excluding), ['DEF'])
    t.equal(await isIn(excluding, system, 'ABC'), false)
    t.equal(await isIn(excluding, system, 'aBc'), false)
    t.equal(await isIn(excluding, system, 'def'), true)

    const one = { include: [listed(system, 'ABC')] }
    t.equal(await isIn(one, system, 'abc'), true)
    t.equal(await isIn(one, system, 'ABC'), true)
    t.equal(await isIn(one, system, 'def'), false)

    t.same(await expandCodes({ include: [listed(system, 'ABC', 'abc')] }), ['ABC'])
    t.same(await expandCodes({ include: [listed(system, 'abc'), { system }] }), ['abc', 'DEF'])
    const both = { include: [listed(system, 'ABC')], exclude: [listed(system, 'abc')] }
    t.same(await expandCodes(both), undefined)
    t.equal(await isIn(both, system, 'ABC'), false)
  })

  t.test(`codes restricted by another value set ignore case (${system})`, async (t) => {
    const { url } = await admin.create({
      ...valueSet({ include: [listed(system, 'abc')] }),
      url: `${system}/lower`,
    } as Raw)
    t.same(await expandCodes({ include: [{ system, valueSet: [url] }] }), ['ABC'])
  })
}

t.test('listed and excluded codes of other code systems respect case', async (t) => {
  const system = strict
  const excluding = { include: [{ system }], exclude: [listed(system, 'abc')] }
  t.same(await expandCodes(excluding), ['ABC', 'DEF'])
  t.same(await expandCodes({ include: [listed(system, 'ABC', 'abc')] }), ['ABC', 'abc'])
  t.equal(await isIn({ include: [listed(system, 'ABC')] }, system, 'abc'), false)
  const unknown = 'https://example.org/unknown'
  t.same(await expandCodes({ include: [listed(unknown, 'A', 'a')] }), ['A', 'a'])
})
