import t from 'tap'
import type { HttpError } from '../../../shared/core/errors.ts'
import { compileTenant, withinLimits, withinTime } from '../../../shared/fhirpath/custom.ts'

const name = Array.from({ length: 50 }, (_, index) => ({ family: `f${index}`, given: ['a', 'b'] }))
const patient = { resourceType: 'Patient', active: true, name }
const bundle = {
  resourceType: 'Bundle',
  entry: Array.from({ length: 2_000 }, () => ({ resource: patient })),
}

function catchFault(run: () => unknown): Partial<HttpError> {
  try {
    run()
    return {}
  } catch (error) {
    return error as HttpError
  }
}

const costly: [string, string, object?][] = [
  ['forty doublings of a text', `'a'${".replace('a', 'aa')".repeat(40)}`],
  ['forty sums of texts', `'aaaaaaaaaa'${'.select($this + $this)'.repeat(40)}`],
  ['forty concatenations', `name.given${'.select($this & $this)'.repeat(40)}`],
  [
    'empty matches in a growing text',
    `'x'${".replaceMatches('b*', 'yyyyyyyyyyyyyyy')".repeat(20)}`,
  ],
  ['the text before a match', `'aaaaaaaaaa'${".replaceMatches('a', '$`$`$`$`')".repeat(9)}`],
  ['a separator that is too long', `name.given.join('b'${".replace('b', 'bb')".repeat(14)})`],
  ['a doubling collection', 'name.aggregate($total.combine($total), 1)'],
  ['children of children of children', `%resource${'.select(%resource.children())'.repeat(12)}`],
  ['products of collections', `name${'.select(%resource.name)'.repeat(12)}`],
  ['descendants of descendants', `descendants()${'.descendants()'.repeat(8)}`, bundle],
  ['filters in filters', `name${'.where(%resource.name'.repeat(6)}${'.exists())'.repeat(6)}`],
  ['a repetition without an end', '1.repeat($this + 1)'],
  ['a repetition of growing texts', "name.given.repeat($this & 'x')"],
  ['growing integers', `9999999999L${'.select($this * $this)'.repeat(40)}`],
  ['a long pattern', `name.family.first().matches('${'[a-z]'.repeat(101)}')`],
  ['a pattern of many states', "'a'.matches('(a|b){900}')"],
  ['a long text', `'${'a'.repeat(2_000)}'`],
  ['many parts', `1${' + 1'.repeat(200)}`],
  ['deep parentheses', `${'('.repeat(33)}1${')'.repeat(33)}`],
  ['many signs', `${'-'.repeat(1_000)}1`],
  ['parts between quotes in comments', `/*'*/1${'+1'.repeat(200)}/*'*/`],
]
for (const [what, expression, node = patient] of costly) {
  t.test(`stops an expression with ${what}`, async (t) => {
    const { status, outcome } = catchFault(() => compileTenant(expression)(node))
    t.equal(status, 400)
    t.equal(outcome?.issue[0]?.code, 'too-costly')
  })
}

t.test('stops an expression whose result exceeds the stack of the engine', async (t) => {
  const { status, outcome } = catchFault(() =>
    withinLimits(() => compileTenant('descendants()')(bundle), 60_000),
  )
  t.equal(status, 400)
  t.equal(outcome?.issue[0]?.code, 'too-costly')
})

const refused: [string, string][] = [
  ['the factory of the engine', "%factory.string('x')"],
  ['its terminology server', "%terminologies.expand('http://example.org')"],
  ['a value set', "name.given.memberOf('http://example.org')"],
  ['a quoted memberOf', "name.given.`memberOf`('http://example.org')"],
  ['an instance', "Coding { code: 'x' }"],
  ['an instance behind a comment', "/*'*/ Coding { code: 'x' } /*'*/"],
  ['repeated repetitions in a pattern', "'a'.matches('(((((a{30}){30}){30}){30}){30})')"],
  ['a method of JavaScript', 'name.toString.call()'],
]
for (const [what, expression] of refused) {
  t.test(`rejects an expression with ${what}`, async (t) => {
    t.equal(catchFault(() => compileTenant(expression)(patient)).status, 400)
  })
}

const answered: [string, unknown[]][] = [
  [`'${'a'.repeat(40)}!'.matches('^(a+)+$')`, [false]],
  ["name.where(family = 'f7').given.first()", ['a']],
  ['name.given.count() > 99 and {}.empty()', [true]],
  ['constructor', []],
  ['%constructor', []],
  ["'http://127.0.0.1/Patient/1'.resolve().id", ['1']],
]
for (const [expression, values] of answered) {
  t.test(`evaluates ${expression.slice(0, 60)}`, async (t) => {
    t.same(compileTenant(expression)(patient), values)
  })
}

t.test('one slow expression ends its whole batch', async (t) => {
  const slow = compileTenant('1.repeat($this + 1)')
  const quick = compileTenant('active')
  t.same(
    withinLimits(() => [quick(patient), quick(patient)]),
    [[true], [true]],
  )

  let after: unknown
  const { status } = catchFault(() =>
    withinLimits(() => {
      slow(patient)
      after = quick(patient)
    }),
  )
  t.equal(status, 400)
  t.equal(after, undefined)
  t.same(quick(patient), [true])
})

t.test('a failing batch does not affect the next one', async (t) => {
  t.throws(
    () =>
      withinLimits(() => {
        throw new Error('of the caller')
      }),
    /of the caller/,
  )
  const slow = compileTenant("name.given.repeat($this & 'x')")
  t.equal(catchFault(() => slow(patient)).status, 400)
  t.same(compileTenant("'abc'.matches('b')")(patient), [true])
})

t.test('work and the batches inside it have separate time limits', async (t) => {
  const endless = () => {
    for (;;);
  }
  t.match(
    catchFault(() => withinTime(30, 'Too long', endless)),
    { status: 400, message: 'Too long' },
  )
  const text = 'A FHIRPath expression takes too long'
  const inner = catchFault(() => withinTime(60_000, 'Too long', () => withinLimits(endless)))
  t.equal(inner.message, text)
  t.equal(
    withinTime(1000, 'Too long', () => 'in time'),
    'in time',
  )
})
