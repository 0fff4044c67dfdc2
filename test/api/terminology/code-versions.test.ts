/** The version of a code in operations on CodeSystems. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const { admin } = await openBotica(t)
const url = 'https://example.org/versioned'

const create = async (resource: object) =>
  (await admin.create({ status: 'active', ...resource } as Raw)).id

const older = await create({
  resourceType: 'CodeSystem',
  url,
  version: '1.0',
  content: 'complete',
  hierarchyMeaning: 'is-a',
  concept: [{ code: 'a', concept: [{ code: 'b' }] }],
})
const newer = await create({
  resourceType: 'CodeSystem',
  url,
  version: '2.0',
  content: 'complete',
  concept: [{ code: 'a' }, { code: 'b' }, { code: 'x' }],
})
await create({
  resourceType: 'ValueSet',
  url: `${url}/all`,
  compose: { include: [{ system: url }] },
})

const call = (operation: string, ...parameter: object[]) =>
  admin.post<Raw>(operation, { resourceType: 'Parameters', parameter })
const coding = (code: string, version?: string, name = 'coding') => ({
  name,
  valueCoding: { system: url, code, ...(version === undefined ? {} : { version }) },
})
const text = (name: string, valueString: string) => ({ name, valueString })
const valueIn = ({ body }: { body: Raw }) => {
  const [first] = body.parameter ?? []
  return first?.valueBoolean ?? first?.valueCode
}

t.test('$validate-code uses the version of the code', async (t) => {
  const operation = 'CodeSystem/$validate-code'
  for (const [version, expected] of [
    [undefined, true],
    ['1.0', false],
    ['2.0', true],
    ['3.0', false],
  ] as const) {
    const name = `version ${version}`
    t.equal(valueIn(await call(operation, coding('x', version))), expected, name)
    if (version === undefined) continue
    for (const parameter of ['version', 'systemVersion']) {
      const query = `${operation}?url=${url}&code=x&${parameter}=${version}`
      t.equal(valueIn(await admin.get(query)), expected, `${parameter} ${version}`)
      const inSet = `ValueSet/$validate-code?url=${url}/all&system=${url}&code=x`
      const set = await admin.get(`${inSet}&${parameter}=${version}`)
      t.equal(valueIn(set), expected, `ValueSet, ${parameter} ${version}`)
    }
  }
  t.equal(valueIn(await call(operation, coding('x'), text('version', '1.0'))), false)
  t.equal(valueIn(await call(operation, coding('x'), text('version', '2.0'))), true)
  t.equal(valueIn(await admin.get(`${operation}?url=${url}|1.0&code=x&version=2.0`)), false)
  t.equal(valueIn(await admin.get(`${operation}?url=${url}|1.0&code=x`)), false)
  t.equal(valueIn(await admin.get(`${operation}?url=${url}|2.0&code=x`)), true)
})

t.test('$validate-code rejects an unknown CodeSystem, also for a code of another', async (t) => {
  for (const system of ['', `&system=${url}`]) {
    const path = `CodeSystem/$validate-code?url=https://example.org/unknown&code=x${system}`
    t.equal((await admin.get(path)).status, 404, path)
  }
})

t.test('$validate-code accepts a concept if one of its codings is valid', async (t) => {
  const concept = (...versions: string[]) => ({
    name: 'codeableConcept',
    valueCodeableConcept: {
      coding: versions.map((version) => ({ system: url, version, code: 'x' })),
    },
  })
  const operation = 'CodeSystem/$validate-code'
  t.equal(valueIn(await call(operation, concept('1.0', '2.0'))), true)
  t.equal(valueIn(await call(operation, concept('1.0', '3.0'))), false)
})

t.test('$validate-code of one CodeSystem rejects codes of another version', async (t) => {
  const operation = `CodeSystem/${newer}/$validate-code`
  t.equal(valueIn(await call(operation, coding('x'))), true)
  t.equal(valueIn(await call(operation, coding('x', '2.0'))), true)
  t.equal(valueIn(await call(operation, coding('x', '1.0'))), false)
  t.equal(valueIn(await admin.get(`${operation}?code=x&version=1.0`)), false)
  t.equal(valueIn(await admin.get(`${operation}?code=x&url=${url}`)), true)
  const other = await admin.get(`${operation}?code=x&url=https://example.org/other`)
  t.match(other, { status: 400, body: { issue: [{ expression: ['url'] }] } })
})

t.test('returns 400 for two versions of one code', async (t) => {
  for (const operation of ['CodeSystem/$validate-code', 'ValueSet/$validate-code']) {
    const query = `url=${url}&system=${url}&code=x&version=1.0&systemVersion=2.0`
    t.equal((await admin.get(`${operation}?${query}`)).status, 400, operation)
    const posted = [coding('x', '2.0'), text('version', '1.0'), text('url', url)]
    t.equal((await call(operation, ...posted)).status, 400, operation)
  }
})

t.test('$lookup finds only codes of the version', async (t) => {
  const status = async (query: string) => (await admin.get(query)).status
  for (const [version, expected] of [
    ['1.0', 404],
    ['2.0', 200],
  ] as const) {
    const query = `system=${url}&code=x`
    for (const parameter of ['version', 'systemVersion']) {
      const path = `CodeSystem/$lookup?${query}&${parameter}=${version}`
      t.equal(await status(path), expected, path)
    }
    t.equal(await status(`CodeSystem/${newer}/$lookup?${query}&version=${version}`), expected)
    const { status: posted } = await call(`CodeSystem/${newer}/$lookup`, coding('x', version))
    t.equal(posted, expected)
  }
})

t.test('$subsumes compares codes of one version', async (t) => {
  const operation = 'CodeSystem/$subsumes'
  const both = (a?: string, b?: string) => [coding('a', a, 'codingA'), coding('b', b, 'codingB')]
  t.equal(valueIn(await call(operation, ...both('1.0', '1.0'))), 'subsumes')
  t.equal(valueIn(await call(operation, ...both('2.0', '2.0'))), 'not-subsumed')
  t.equal(valueIn(await call(operation, ...both('1.0'))), 'subsumes')
  t.equal(valueIn(await call(operation, ...both(undefined, '1.0'))), 'subsumes')
  t.equal(valueIn(await call(operation, ...both())), 'not-subsumed')
  t.equal((await call(operation, ...both('1.0', '2.0'))).status, 400)
  t.equal((await call(operation, ...both('1.0'), text('version', '2.0'))).status, 400)
  const one = `CodeSystem/${older}/$subsumes`
  t.equal(valueIn(await call(one, ...both('1.0'))), 'subsumes')
  t.equal((await call(one, ...both('2.0', '2.0'))).status, 400)
  const foreign = `${one}?codeA=a&codeB=b&system=https://example.org/other`
  t.equal((await admin.get(foreign)).status, 400)
})
