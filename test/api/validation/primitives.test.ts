/**
 * Format and range of every primitive type, on each input path. Imports the check of primitive values, to compare it
 * with each path.
 */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { isPrimitive } from '../../../shared/fhir/primitives.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  // The parts of imports are in the database, which all files share.
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const FHIR = { 'Content-Type': 'application/fhir+json' }
const PATCH = { 'Content-Type': 'application/json-patch+json' }

interface Spellings {
  readonly good: readonly string[]
  readonly bad: readonly string[]
}

const urls = {
  good: ['"http://example.org/a?b=c#d"', '"urn:a"'],
  bad: ['"a b"', '" urn:a"', '"urn:a\\n"', '"urn:\\u0001"', '5'],
}
const texts = {
  good: ['"a"', '" a "', '"a\\tb\\r\\nc"', '"ä😀"'],
  bad: ['" "', '"\\n\\t"', '"a\\u0001b"', '"a\\u000bb"', '5'],
}

/** Spellings in JSON. https://hl7.org/fhir/R4/datatypes.html#primitive */
const SPELLINGS: Readonly<Record<string, Spellings>> = {
  base64Binary: {
    good: ['"AA=="', '"AAA="', '"AAAA\\r\\nAA=="'],
    bad: ['"A"', '"AA=A"', '"===="', '"AA"', '"AA-_"', '"A==="'],
  },
  boolean: { good: ['true', 'false'], bad: ['"true"', '1', '0', '"yes"'] },
  canonical: urls,
  code: { good: ['"a"', '"a b"'], bad: ['" a"', '"a "', '"a  b"', '"a\\u0001"', '5'] },
  date: {
    good: ['"2020"', '"2020-02"', '"2020-02-29"'],
    bad: ['"2020-13"', '"2021-02-29"', '"2020-1-1"', '"0000-01-01"', '"2020-01-01T00:00:00Z"'],
  },
  dateTime: {
    good: ['"2020"', '"2020-02-29"', '"2020-01-01T23:59:60.123Z"', '"2020-01-01T00:00:00+14:00"'],
    bad: [
      '"2020-01-01T10:00Z"',
      '"2020-01-01T10:00:00"',
      '"2020-01-01 10:00:00Z"',
      '"2020-01-01T24:00:00Z"',
      '"2020-01-01T00:00:00+14:01"',
    ],
  },
  decimal: {
    good: ['0', '-0.10', '1.00', '1e2', '1E-7', '123456789012345678.90'],
    bad: ['"1"', 'true', '1e400'],
  },
  id: { good: ['"a-B.1"'], bad: ['"a_b"', '"a b"', `"${'a'.repeat(65)}"`] },
  instant: {
    good: ['"2020-01-01T00:00:00Z"', '"2020-01-01T00:00:00.123-05:00"'],
    bad: ['"2020-01-01"', '"2020-01-01T00:00:00"', '"2020-02-30T00:00:00Z"', '"2020-01-01T00:00Z"'],
  },
  integer: {
    good: ['0', '-1', '2147483647', '-2147483648'],
    bad: ['2147483648', '-2147483649', '1.0', '1e2', '-0', '1.5', '"1"'],
  },
  markdown: texts,
  oid: { good: ['"urn:oid:1.2.840"'], bad: ['"1.2.840"', '"urn:oid:3.1"', '"urn:oid:1.02"'] },
  positiveInt: {
    good: ['1', '2147483647'],
    bad: ['0', '-1', '2147483648', '1.0', '1e2', '"1"'],
  },
  string: texts,
  time: {
    good: ['"23:59:60"', '"00:00:00.123"'],
    bad: ['"24:00:00"', '"10:00"', '"10:00:00Z"', '"1:00:00"'],
  },
  unsignedInt: {
    good: ['0', '2147483647'],
    bad: ['-1', '2147483648', '1.0', '1e2', '-0'],
  },
  uri: urls,
  url: urls,
  uuid: {
    good: ['"urn:uuid:0c3151bd-1cbf-4d64-b04d-cd9187a4c6e0"'],
    bad: [
      '"0c3151bd-1cbf-4d64-b04d-cd9187a4c6e0"',
      '"urn:uuid:0C3151BD-1cbf-4d64-b04d-cd9187a4c6e0"',
      '"urn:uuid:0c3151bd1cbf4d64b04dcd9187a4c6e0"',
    ],
  },
  xhtml: {
    good: ['"<div xmlns=\\"http://www.w3.org/1999/xhtml\\">a</div>"'],
    bad: ['"a"', '"<p>a</p>"', '"<div><script>a</script></div>"', '"<div> </div>"', '5'],
  },
}

const valueName = (type: string) => `value${type.charAt(0).toUpperCase()}${type.slice(1)}`

/** The name and the text of an element that holds the value. */
function holder(type: string, value: string): readonly [name: string, text: string] {
  if (type === 'xhtml') return ['text', `{"status":"generated","div":${value}}`]
  return ['extension', `[{"url":"urn:a","${valueName(type)}":${value}}]`]
}

const elementPath = (type: string) =>
  type === 'xhtml' ? 'Patient.text.div' : `Patient.extension[0].value`

const patientText = (type: string, value: string, id?: string) => {
  const [name, text] = holder(type, value)
  const own = id === undefined ? '' : `"id":"${id}",`
  return `{"resourceType":"Patient",${own}"${name}":${text}}`
}

const patient = await admin.create({ resourceType: 'Patient', active: true })
const CREATE = 'mutation ($res: PatientCreate!) { PatientCreate(res: $res) { id } }'

interface Answered {
  readonly status: number
  /** The path of the fault. */
  readonly path: unknown
  readonly text: string
}

const PATHS: Readonly<Record<string, (type: string, value: string) => Promise<Answered>>> = {
  create: async (type, value) =>
    answered(await admin.post('Patient', patientText(type, value), FHIR)),
  patch: async (type, value) => {
    const [name, text] = holder(type, value)
    const steps = `[{"op":"add","path":"/${name}","value":${text}}]`
    return answered(await admin.patch(`Patient/${patient.id}`, steps, PATCH))
  },
  'GraphQL mutation': async (type, value) => {
    const text = `{"query":${JSON.stringify(CREATE)},"variables":{"res":${patientText(type, value)}}}`
    const answer = await admin.post<Raw>('$graphql', text, { 'Content-Type': 'application/json' })
    const [error] = answer.body.errors ?? []
    if (error === undefined) {
      const { id } = answer.body.data.PatientCreate
      return answered(await admin.get(`Patient/${id}`))
    }
    const issue = error.extensions?.outcome?.issue?.[0]
    // GraphQL itself names the place of a value of another JSON type.
    const place = / at (\.[\w.[\]]+)/.exec(error.message)?.[1]
    const path = issue?.expression?.[0] ?? `Patient${place}`
    return { status: error.extensions?.status ?? 400, path, text: answer.text }
  },
}

function answered(answer: { status: number; body: unknown; text: string }): Answered {
  const { issue } = answer.body as Raw
  return { status: answer.status, path: issue?.[0].expression?.[0], text: answer.text }
}

t.test('lists every primitive type', async (t) => {
  for (const [type, { good, bad }] of Object.entries(SPELLINGS)) {
    t.ok(isPrimitive(type), type)
    t.ok(good.length >= 1 && bad.length >= 3, type)
  }
  t.equal(Object.keys(SPELLINGS).length, 20)
})

for (const [type, { good, bad }] of Object.entries(SPELLINGS)) {
  for (const [way, send] of Object.entries(PATHS)) {
    t.test(`accepts valid ${type} by ${way} as written and rejects others`, async (t) => {
      for (const value of good) {
        const { status, text } = await send(type, value)
        t.ok(status === 200 || status === 201, `${value}: ${text}`)
        t.ok(text.includes(value), `${value} is kept`)
      }
      for (const value of bad) {
        const { status, path, text } = await send(type, value)
        t.equal(status, 400, `${value}: ${text}`)
        t.match(path, elementPath(type), `${value}: ${text}`)
      }
    })
  }
}

t.test('keeps the spelling of GraphQL literals', async (t) => {
  const create = async (name: string, value: string) => {
    const res = `{ resourceType: "Patient", extension: [{ url: "urn:a", ${name}: ${value} }] }`
    const query = `mutation { PatientCreate(res: ${res}) { id } }`
    return (await admin.post<Raw>('$graphql', { query })).body.data?.PatientCreate?.id
  }
  t.ok(await create('valueInteger', '2'))
  for (const value of ['1.0', '1e2', '2147483648', '-0', '"1"']) {
    t.notOk(await create('valueInteger', value), value)
  }
  for (const value of ['1.00', '12345678901234567890', '1e2']) {
    const { text } = await admin.get(`Patient/${await create('valueDecimal', value)}`)
    t.ok(text.includes(`"valueDecimal":${value}}`), value)
  }
})

t.test('accepts and rejects the same values by $import', async (t) => {
  const lines = Object.entries(SPELLINGS).flatMap(([type, { good, bad }]) =>
    [...good, ...bad].map((value) => ({
      type,
      value,
      isGood: good.includes(value),
      id: randomUUID(),
    })),
  )
  const content = lines.map(({ type, value, id }) => patientText(type, value, id)).join('\n')
  const ndjson = { 'Content-Type': 'application/fhir+ndjson' }
  const file = await admin.post('Binary', content, ndjson)
  const part = [
    { name: 'type', valueCode: 'Patient' },
    { name: 'url', valueUrl: `Binary/${file.body.id}` },
  ]
  const started = await admin.post('$import', {
    resourceType: 'Parameters',
    parameter: [
      { name: 'inputFormat', valueCode: 'application/fhir+ndjson' },
      { name: 'input', part },
    ],
  })
  t.equal(started.status, 202, started.text)
  const url = started.headers.get('content-location') ?? ''
  await until(async () => (await admin.get(url)).status === 200, 120_000)
  for (const { type, value, isGood, id } of lines) {
    const { status, text } = await admin.get(`Patient/${id}`)
    t.equal(status, isGood ? 200 : 404, `${type} ${value}`)
    if (isGood) t.ok(text.includes(value), `${type} ${value} is kept`)
  }
})

const SEARCHES: readonly (readonly [
  query: string,
  good: readonly string[],
  bad: readonly string[],
])[] = [
  [
    'Patient?birthdate=',
    ['2020', 'ge2020-02', 'lt2020-02-29', '2020-01-01T10:00Z'],
    ['2020-13', '2021-02-29', '2020-1-1', '01/02/2020', '2020-01-01T24:00Z', 'gt'],
  ],
  ['Patient?_lastUpdated=', ['gt2020-01-01T00:00:00Z'], ['yesterday', '2020-02-30', '20200101']],
  [
    'RiskAssessment?probability=',
    ['0.5', 'gt1e-2', '-1', '1.00'],
    ['a', '0x10', '1e', '--1', 'NaN', 'Infinity', '1e400', 'gt'],
  ],
  [
    'Observation?value-quantity=',
    ['5.4', 'le5.40e-3|http://unitsofmeasure.org|g', '5||mg'],
    ['a', '|http://unitsofmeasure.org|g', '1.2.3', 'lt|mg'],
  ],
  ['Patient?active=', ['true', 'false'], ['|']],
]

for (const [query, good, bad] of SEARCHES) {
  t.test(`accepts only values of the type in ${query}`, async (t) => {
    for (const value of good) {
      const { status, text } = await admin.get(query + encodeURIComponent(value))
      t.equal(status, 200, `${value}: ${text}`)
    }
    for (const value of bad) {
      const { status, text } = await admin.get(query + encodeURIComponent(value))
      t.equal(status, 400, `${value}: ${text}`)
    }
  })
}
