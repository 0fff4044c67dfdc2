import t from 'tap'
import {
  type Decimal,
  isDecimal,
  isSameValue,
  parseBody,
  parseJson,
  toNumber,
} from '../../../shared/fhir/json.ts'

const texts = [
  '{"a":1.00}',
  '{"a":[1.0,2.50,3]}',
  '{"a":1e5,"b":1E-7,"c":0.0000001}',
  '{"a":-0}',
  '{"a":12345678901234567890}',
  '{"a":3.14159265358979323846}',
  '{"a":"1.00","b":"x:1.00,"}',
  '[1.10]',
  '1.0',
  '{"a":0.019779961629483703,"b":69.98,"c":0,"d":-5}',
]
for (const text of texts) {
  t.test(`numbers keep their text in ${text}`, async (t) => {
    t.equal(JSON.stringify(parseJson(text)), text)
  })
}

t.test('keeps numbers plain if JavaScript formats them identically', async (t) => {
  t.same(parseJson('{"a":1.5,"b":0,"c":"1.00"}'), { a: 1.5, b: 0, c: '1.00' })
})

t.test('a Decimal computes, compares and shows its text', async (t) => {
  const value = (parseJson('{"a":2.50}') as { a: Decimal }).a
  t.ok(isDecimal(value))
  t.equal(Number(value) * 2, 5)
  t.ok(Number(value) > 2)
  t.equal(String(value), '2.50')
  t.equal(toNumber(value), 2.5)
  t.equal(toNumber('2.5'), undefined)
})

const pairs: [string, string, boolean][] = [
  ['{"a":[1,{"b":null}],"c":"x"}', '{"c":"x","a":[1,{"b":null}]}', true],
  ['{"a":1.50}', '{"a":1.50}', true],
  ['{"a":1.50}', '{"a":1.5}', false],
  ['{"a":1.50}', '{"a":"1.50"}', false],
  ['{"a":1}', '{"a":1,"b":null}', false],
  ['{"a":1,"b":2}', '{"a":1}', false],
  ['[1,2]', '[2,1]', false],
  ['[1]', '{"0":1}', false],
  ['{}', '[]', false],
  ['null', '{}', false],
]
for (const [a, b, isSame] of pairs) {
  t.test(`${a} is ${isSame ? 'the same as' : 'another value than'} ${b}`, async (t) => {
    t.equal(isSameValue(parseJson(a), parseJson(b)), isSame)
    t.equal(isSameValue(parseJson(b), parseJson(a)), isSame)
  })
}

const unparsed = 'Content could not be parsed'
const tooDeep = 'JSON is nested deeper than 64 levels'
const bad: [string, Buffer | string, string][] = [
  ['broken JSON', '{"a":', unparsed],
  ['an empty body', '', unparsed],
  ['bytes that are not UTF-8', Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]), unparsed],
  ['an escaped NUL', '{"a":"x\\u0000"}', 'Null bytes are not allowed'],
  ['65 levels', `${'['.repeat(65)}${']'.repeat(65)}`, tooDeep],
  ['100000 levels', `${'['.repeat(100_000)}${']'.repeat(100_000)}`, tooDeep],
]
for (const [name, body, message] of bad) {
  t.test(`rejects ${name} with 400`, async (t) => {
    t.throws(() => parseBody(body), { message })
  })
}

t.test('a BOM, 64 levels and an escaped backslash before u0000 are accepted', async (t) => {
  t.same(parseBody(Buffer.from('\uFEFF{"a":1}')), { a: 1 })
  t.ok(parseBody(`${'['.repeat(64)}${']'.repeat(64)}`))
  t.same(parseBody('{"a":"\\\\u0000"}'), { a: '\\u0000' })
})
