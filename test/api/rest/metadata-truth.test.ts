/** Imports the table of operations, to try each declared one. */
import t from 'tap'
import { operations } from '../../../shared/api/operations.ts'
import { searchParameter } from '../../../shared/fhir/definitions.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'

const { superAdmin, admin, anonymous, baseUrl } = await openBotica(t)

interface Claimed {
  readonly type: string
  readonly interaction: readonly { readonly code: string }[]
  readonly searchParam?: readonly { readonly name: string; readonly type: string }[]
  readonly operation?: readonly { readonly name: string; readonly definition: string }[]
}

interface Statement extends Resource {
  readonly rest: readonly [
    {
      readonly resource: readonly Claimed[]
      readonly operation: readonly { readonly name: string }[]
      readonly interaction: readonly { readonly code: string }[]
      readonly security: {
        readonly extension: readonly [{ readonly extension: readonly { valueUri: string }[] }]
      }
    },
  ]
}

const { body } = await anonymous.get<Statement>('metadata')
const [{ resource: claims, security, operation, interaction }] = body.rest

async function inGroups<T>(items: readonly T[], work: (item: T) => Promise<void>): Promise<void> {
  for (let start = 0; start < items.length; start += 8) {
    await Promise.all(items.slice(start, start + 8).map(work))
  }
}

const NOBODY = '00000000-0000-4000-8000-000000000000'

/** A request per claimed interaction, to resources that do not exist. */
const REQUESTS: Readonly<Record<string, (type: string) => [string, string]>> = {
  read: (type) => ['GET', `${type}/${NOBODY}`],
  vread: (type) => ['GET', `${type}/${NOBODY}/_history/1`],
  update: (type) => ['PUT', `${type}/${NOBODY}`],
  patch: (type) => ['PATCH', `${type}/${NOBODY}`],
  delete: (type) => ['DELETE', `${type}/${NOBODY}`],
  create: (type) => ['POST', type],
  'history-instance': (type) => ['GET', `${type}/${NOBODY}/_history`],
  'history-type': (type) => ['GET', `${type}/_history?_count=1`],
  'search-type': (type) => ['GET', `${type}?_count=1&_id=${NOBODY}`],
}

const SYSTEM: Readonly<Record<string, [string, string]>> = {
  transaction: ['POST', ''],
  batch: ['POST', ''],
  'search-system': ['GET', '?_type=Basic&_count=1'],
  'history-system': ['GET', '_history?_count=1'],
}

async function answers(method: string, path: string): Promise<number> {
  const response = await fetch(new URL(path, `${baseUrl}fhir/R4/`), {
    method,
    headers: { Authorization: `Bearer ${superAdmin.token}` },
  })
  const text = await response.text()
  const isSaidNo = response.status === 405 || text.includes('"not-supported"')
  return isSaidNo ? 405 : response.status
}

t.test('serves every claimed interaction of a type', async (t) => {
  t.ok(claims.length > 150)
  await inGroups(claims, async ({ type, interaction }) => {
    for (const { code } of interaction) {
      const request = REQUESTS[code]
      if (request === undefined) throw new Error(`Unknown interaction ${code}`)
      const [method, path] = request(type)
      const status = await answers(method, path)
      t.ok(status < 500 && status !== 405, `${method} ${path}: ${status}`)
      if (code === 'search-type') t.equal(status, 200, path)
    }
  })
})

t.test('serves every claimed interaction of the system', async (t) => {
  for (const { code } of interaction) {
    const [method, path] = SYSTEM[code] ?? ['GET', 'none']
    const status = await answers(method, path)
    t.ok(status < 500 && status !== 404 && status !== 405, `${code}: ${status}`)
  }
})

/** Returns a valid value for the parameter. */
function valueFor(type: string, { name, type: kind }: { name: string; type: string }): string {
  const parameter = searchParameter(type, name)
  if (kind === 'reference') return `${parameter?.targets?.[0] ?? 'Patient'}/x`
  if (kind !== 'composite') return plainValue(kind)
  return (parameter?.components ?? []).map((component) => plainValue(component.type)).join('$')
}

function plainValue(kind: string): string {
  if (kind === 'date') return '2020'
  if (kind === 'number' || kind === 'quantity') return '1'
  if (kind === 'uri') return 'urn:x'
  if (kind === 'special') return '48.2|16.4|5|km'
  return kind === 'reference' ? 'Patient/x' : 'x'
}

t.test('accepts every claimed search parameter', async (t) => {
  await inGroups(claims, async ({ type, searchParam = [] }) => {
    if (searchParam.length === 0) return
    const query = new URLSearchParams({ _count: '1' })
    for (const parameter of searchParam) query.set(parameter.name, valueFor(type, parameter))
    const { status, text } = await superAdmin.get(`${type}?${query}`)
    t.equal(status, 200, `${type}?${query}: ${status === 200 ? '' : text}`)
  })
})

t.test('serves every claimed operation at its level', async (t) => {
  const served = (name: string, type: string | undefined) =>
    operations.some(
      (item) =>
        item.name === name &&
        item.on.some((on) => (type === undefined ? on.level === 'system' : on.level !== 'system')),
    )
  for (const { name } of operation) t.ok(served(name, undefined), name)
  const claimed = claims.flatMap(({ type, operation = [] }) =>
    operation.map((one) => ({ type, ...one })),
  )
  t.ok(claimed.length > 1000)
  const unserved = claimed.filter(({ type, name }) => !served(name, type))
  t.same(unserved, [])
  const misnamed = claimed.filter(({ name, definition }) => !definition.endsWith(name))
  t.same(misnamed, [])
  const valueSet = claims.find(({ type }) => type === 'ValueSet')
  t.ok(
    valueSet?.operation?.some(
      ({ definition }) => definition === 'http://hl7.org/fhir/OperationDefinition/ValueSet-expand',
    ),
  )
})

t.test('serves the claimed OAuth endpoints', async (t) => {
  for (const { valueUri } of security.extension[0].extension) {
    const { status } = await fetch(valueUri, { method: 'POST' })
    t.ok(status === 400 || status === 401, `${valueUri}: ${status}`)
  }
})

t.test('lists exactly the packaged terminology', async (t) => {
  const answer = await anonymous.get<Resource & { codeSystem: { uri: string }[] }>(
    'metadata?mode=terminology',
  )
  t.match(answer.body, { resourceType: 'TerminologyCapabilities', kind: 'instance' })
  t.ok(answer.body.codeSystem.length > 1000)
  for (const { uri } of answer.body.codeSystem.filter((_, i) => i % 100 === 0)) {
    const url = encodeURIComponent(`${uri}?fhir_vs`)
    t.match(await admin.get(`ValueSet/$expand?url=${url}&count=1`), { status: 200 }, uri)
  }
})
