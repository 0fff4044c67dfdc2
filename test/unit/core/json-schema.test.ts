import t from 'tap'
import { checkBySchema, findSchemaProblem } from '../../../shared/core/json-schema.ts'

const visit = {
  type: 'object',
  properties: {
    patient: { type: 'string', pattern: '^Patient/', description: 'Whose visit' },
    days: { type: 'integer', minimum: 1, maximum: 30 },
    reasons: {
      type: 'array',
      items: { enum: ['pain', 'control'] },
      uniqueItems: true,
      maxItems: 2,
    },
    contact: { anyOf: [{ type: 'string', minLength: 3 }, { type: 'null' }] },
  },
  required: ['patient'],
  additionalProperties: false,
}

t.test('accepts values that match, and names each place that does not', (t) => {
  t.equal(findSchemaProblem(visit), undefined)
  const right = { patient: 'Patient/1', days: 30, reasons: ['pain'], contact: null }
  t.same(checkBySchema(visit, right), [])
  const cases: readonly [unknown, string, RegExp][] = [
    [[], '', /type object/],
    [{}, '', /must have patient/],
    [{ patient: 'Group/1' }, '/patient', /match \^Patient/],
    [{ patient: 'Patient/1', days: 1.5 }, '/days', /type integer/],
    [{ patient: 'Patient/1', days: 31 }, '/days', /at most 30/],
    [{ patient: 'Patient/1', days: 0 }, '/days', /at least 1/],
    [{ patient: 'Patient/1', reasons: ['fun'] }, '/reasons/0', /one of \["pain","control"\]/],
    [{ patient: 'Patient/1', reasons: ['pain', 'pain'] }, '/reasons', /no equal items/],
    [{ patient: 'Patient/1', contact: 'ab' }, '/contact', /one of anyOf/],
    [{ patient: 'Patient/1', 'a/b': 1 }, '/a~1b', /not allowed/],
  ]
  for (const [value, at, text] of cases) {
    t.match(checkBySchema(visit, value)[0], { at, text }, JSON.stringify(value))
  }
  t.end()
})

t.test('checks every keyword at its limit and one beyond', (t) => {
  const cases: readonly [object, unknown, unknown][] = [
    [{ const: { a: [1] } }, { a: [1] }, { a: [2] }],
    [{ type: ['string', 'null'] }, null, 1],
    [{ type: 'number' }, 1.5, '1'],
    [{ minLength: 2 }, 'äö', '😀'],
    [{ maxLength: 1 }, '😀', 'ab'],
    [{ minItems: 1 }, [1], []],
    [{ maxItems: 1 }, [1], [1, 2]],
    [{ minProperties: 1 }, { a: 1 }, {}],
    [{ maxProperties: 1 }, { a: 1 }, { a: 1, b: 2 }],
    [{ exclusiveMinimum: 1 }, 1.1, 1],
    [{ exclusiveMaximum: 1 }, 0.9, 1],
    [{ multipleOf: 0.1 }, 0.3, 0.35],
    [
      { uniqueItems: true },
      [{ a: 1, b: 2 }, 1],
      [
        { a: 1, b: 2 },
        { b: 2, a: 1 },
      ],
    ],
    [{ oneOf: [{ minimum: 1 }, { maximum: 3 }] }, 5, 2],
    [{ allOf: [{ minimum: 1 }, { maximum: 3 }] }, 2, 4],
    [{ items: { type: 'string' } }, ['a'], [1]],
    [{ additionalProperties: { type: 'string' } }, { a: 'a' }, { a: 1 }],
    [{ properties: { a: false } }, { b: 1 }, { a: 1 }],
  ]
  for (const [schema, right, wrong] of cases) {
    const name = JSON.stringify(schema)
    t.equal(findSchemaProblem(schema), undefined, name)
    t.same(checkBySchema(schema, right), [], `${name} accepts ${JSON.stringify(right)}`)
    t.ok(checkBySchema(schema, wrong).length > 0, `${name} rejects ${JSON.stringify(wrong)}`)
  }
  t.end()
})

t.test('rejects schemas outside the subset by their place', (t) => {
  let deep: object = {}
  for (let i = 0; i < 40; i++) deep = { items: deep }
  const cases: readonly [unknown, string, RegExp][] = [
    [[], '', /must be a schema/],
    [{ properties: { a: { $ref: '#' } } }, '/properties/a/$ref', /not supported; the keywords are/],
    [{ patternProperties: {} }, '/patternProperties', /not supported/],
    [{ properties: [] }, '/properties', /must have schemas/],
    [{ anyOf: [] }, '/anyOf', /must have schemas/],
    [{ anyOf: [{ type: 'text' }] }, '/anyOf/0/type', /must be one or more of array, boolean/],
    [{ type: [] }, '/type', /one or more/],
    [{ required: 'a' }, '/required', /list of names/],
    [{ maxLength: -1 }, '/maxLength', /whole number/],
    [{ multipleOf: 0 }, '/multipleOf', /above 0/],
    [{ pattern: '(' }, '/pattern', /must be a regular expression: /],
    [{ pattern: '(?=a)' }, '/pattern', /must be a regular expression: /],
    [{ pattern: 'a'.repeat(201) }, '/pattern', /at most 200 characters/],
    [{ pattern: '[a-z]{1000}[a-z]{1000}' }, '/pattern', /simpler/],
    [
      {
        properties: {
          a: { pattern: 'a{900}' },
          b: { pattern: 'a{900}' },
          c: { pattern: 'a{900}' },
        },
      },
      '/properties/c/pattern',
      /patterns of a schema together are too large/,
    ],
    [{ enum: [] }, '/enum', /list of values/],
    [{ uniqueItems: 'yes' }, '/uniqueItems', /true or false/],
    [{ constructor: 1 }, '/constructor', /not supported/],
    [deep, '/items'.repeat(33), /more than 32 levels/],
  ]
  for (const [schema, at, text] of cases) t.match(findSchemaProblem(schema), { at, text })
  t.end()
})

const TOO_LARGE = [{ at: '', text: 'is too large to be checked' }]

t.test('gives up on values that take too many steps', (t) => {
  const many = (length: number, value: unknown) => Array.from({ length }, () => value)
  const all = (schema: object) => ({ allOf: many(900, schema) })
  const cases: readonly [schema: object, value: unknown][] = [
    [{ items: { anyOf: many(200, 0).map((_, i) => ({ const: i })) } }, many(10_000, 199)],
    [{ items: { enum: [...many(1500, 0), 1] } }, many(10_000, 1)],
    [{ items: { anyOf: [{ required: many(1500, 'a') }, true] } }, many(60_000, {})],
    [{ pattern: '[a-z]{900}' }, 'a'.repeat(200_000)],
    [{ items: { pattern: '^[a-z]{1,100}$' } }, many(5000, 'a'.repeat(50))],
    [all({ minLength: 1 }), 'a'.repeat(200_000)],
    [all({ uniqueItems: true }), many(5000, 0).map((_, i) => i)],
  ]
  for (const [schema, value] of cases) {
    t.equal(findSchemaProblem(schema), undefined)
    const started = process.cpuUsage().user
    t.same(checkBySchema(schema, value), TOO_LARGE, JSON.stringify(schema).slice(0, 60))
    const ms = (process.cpuUsage().user - started) / 1000
    t.ok(ms < 3000, `takes ${ms} ms of CPU`)
  }
  t.end()
})

t.test('writes no text for faults beyond the first five', (t) => {
  const codes = Array.from({ length: 900 }, (_, i) => `code-${i}`)
  const value = Array.from({ length: 50_000 }, () => 'other')
  const started = process.memoryUsage().heapUsed
  const problems = checkBySchema({ items: { enum: codes } }, value)
  t.equal(problems.length, 5)
  t.match(problems[4], { at: '/4', text: /code-899/ })
  t.ok(process.memoryUsage().heapUsed - started < 20_000_000)
  t.end()
})

t.test('checks an ordinary list of a thousand identifiers', (t) => {
  const schema = { items: { type: 'string', pattern: '^[A-Za-z0-9.-]{1,64}$' } }
  const ids = Array.from(
    { length: 1000 },
    (_, i) => `01a2252d-5ff8-7ce6-8837-${100_000_000_000 + i}`,
  )
  t.same(checkBySchema(schema, ids), [])
  t.end()
})
