import t from 'tap'
import { HttpError } from '../../../shared/core/errors.ts'
import { searchParameter } from '../../../shared/fhir/definitions.ts'
import { normaliseString } from '../../../shared/fhir/values.ts'
import { parseSearch } from '../../../shared/search/language/search.ts'
import { type Condition, isCondition } from '../../../shared/search/language/search-request.ts'
import {
  escapeValue,
  parseDateValue,
  parseNumberValue,
  parseQuantityValue,
  parseReferenceValue,
  parseTokenValue,
  splitValue,
} from '../../../shared/search/language/values.ts'

function conditions(type: string, query: string): readonly Condition[] {
  return parseSearch(type, query).conditions.filter(isCondition)
}

function refusal(type: string, query: string, handling: 'strict' | 'lenient' = 'strict'): string {
  try {
    parseSearch(type, query, { handling })
  } catch (error) {
    if (error instanceof HttpError) {
      return `${error.status} ${error.outcome.issue[0]?.code} ${error.message}`
    }
    throw error
  }
  return 'accepted'
}

function isRefused(work: () => unknown): boolean {
  try {
    work()
    return false
  } catch (error) {
    return error instanceof HttpError && error.status === 400
  }
}

t.test('applies the defaults to a query without parameters', async (t) => {
  t.same(parseSearch('Patient', ''), {
    type: 'Patient',
    conditions: [],
    includes: [],
    sort: [],
    count: 20,
    offset: 0,
    cursor: undefined,
    total: 'none',
    summary: undefined,
    elements: undefined,
    ignored: [],
  })
})

t.test('reads repeats as conditions and commas as alternatives', async (t) => {
  t.same(conditions('Patient', 'name=eve,ann&name=smith&gender:not=male'), [
    { code: 'name', type: 'string', modifier: undefined, values: ['eve', 'ann'] },
    { code: 'name', type: 'string', modifier: undefined, values: ['smith'] },
    { code: 'gender', type: 'token', modifier: 'not', values: ['male'] },
  ])
})

t.test('drops duplicate conditions and values', async (t) => {
  t.same(conditions('Patient', 'name=eve,eve&name=eve'), [
    { code: 'name', type: 'string', modifier: undefined, values: ['eve'] },
  ])
})

t.test('ignores empty values', async (t) => {
  t.same(conditions('Patient', 'name=&gender=,&_id='), [])
})

t.test('keeps an escaped comma within its value', async (t) => {
  t.same(conditions('Patient', 'name=a\\,b,c')[0]?.values, ['a\\,b', 'c'])
  t.same(splitValue('a\\|b|c', '|'), ['a\\|b', 'c'])
  t.equal(escapeValue('a,b|c$d\\'), 'a\\,b\\|c\\$d\\\\')
})

t.test('shortens local absolute references and typed ids', async (t) => {
  const options = { fhirUrls: ['https://a.example/fhir/R4/'] }
  const query = 'subject=https://a.example/fhir/R4/Patient/1,https://b.example/Patient/1'
  t.match(parseSearch('Observation', query, options).conditions, [
    { values: ['Patient/1', 'https://b.example/Patient/1'] },
  ])
  t.same(conditions('Patient', '_id=Patient/1,2')[0]?.values, ['1', '2'])
})

t.test('reads result parameters and enforces their bounds', async (t) => {
  const request = parseSearch(
    'Patient',
    '_count=5000&_offset=10000&_sort=-birthdate,name&_total=accurate&_summary=count&_elements=name,id&_fields=gender&_format=json&_=1',
  )
  t.match(request, {
    conditions: [],
    count: 1000,
    offset: 10_000,
    sort: [
      { code: 'birthdate', descending: true },
      { code: 'name', descending: false },
    ],
    total: 'accurate',
    summary: 'count',
    elements: ['name', 'id', 'gender'],
  })
  t.equal(parseSearch('Patient', '_count=0').count, 0)
  t.equal(parseSearch('Patient', '_cursor=x').cursor, 'x')
})

t.test('rejects invalid queries with the reason', async (t) => {
  const many = (count: number) => Array.from({ length: count }, (_, i) => `v${i}`).join(',')
  const cases: readonly (readonly [string, string, string])[] = [
    ['Patient', 'nmae=x', '400 invalid Unknown search parameter: nmae'],
    ['Patient', 'name:foo=x', '400 invalid Invalid modifier :foo for Patient-name'],
    ['Patient', 'name:Patient=x', '400 invalid Invalid modifier :Patient for Patient-name'],
    ['Patient', '_id:missing=true', '400 invalid Invalid modifier :missing for Resource-id'],
    ['Patient', '_count=-1', '400 invalid Invalid _count: -1'],
    ['Patient', '_count=x', '400 invalid Invalid _count: x'],
    [
      'Patient',
      '_offset=10001',
      '400 invalid Search offset exceeds maximum (got 10001, max 10000)',
    ],
    ['Patient', '_offset=0&_cursor=x', '400 invalid Cannot use both offset and cursor'],
    ['Patient', '_sort=nope', '400 invalid Unknown search parameter: nope'],
    ['Patient', '_total=many', '400 invalid Invalid _total: many; use none, estimate or accurate'],
    ['Patient', 'birthdate=soon', '400 invalid Invalid date value: soon'],
    ['Patient', 'gender:missing=x', '400 invalid gender:missing must be true or false, not x'],
    ['Patient', 'gender=|', '400 invalid Invalid token value: |'],
    ['Nope', 'a=b', '400 invalid Unknown resource type: Nope'],
    ['RiskAssessment', 'probability=x', '400 invalid Invalid number value: x'],
    ['Patient', `name=${many(1001)}`, '400 too-costly name has 1001 values; 1000 are allowed'],
    ['Patient', `name=${many(1000)}`, 'accepted'],
    ['Observation', 'code:in=http://vs', 'accepted'],
    ['Observation', 'date:in=http://vs', '400 invalid Invalid modifier :in for clinical-date'],
    ['Observation', 'subject:Patient.nmae=x', '400 invalid Unknown search parameter: nmae'],
    ['Observation', 'sbject.name=x', '400 invalid Unknown search parameter: sbject'],
    ['Observation', 'subject:Nope.name=x', '400 invalid Unknown resource type: Nope'],
    [
      'Observation',
      'code.name=x',
      '400 invalid Search parameter code is not a reference and cannot be chained',
    ],
    [
      'Observation',
      'encounter.patient.organization.partof.name=x',
      '400 too-costly Search chains longer than three links are not currently supported',
    ],
    ['Observation', 'encounter.patient.organization.name=x', 'accepted'],
    ['Patient', '_has=x', '400 invalid Invalid _has: _has; use _has:Type:reference:parameter'],
    ['Patient', '_has:Nope:patient:code=x', '400 invalid Unknown resource type: Nope'],
    ['Patient', '_has:Observation:nope:code=x', '400 invalid Unknown search parameter: nope'],
    [
      'Patient',
      '_has:Observation:encounter:code=x',
      '400 invalid Invalid _has: Observation:encounter does not refer to Patient',
    ],
    ['Patient', '_include=Patient:nope', '400 invalid Invalid include parameter: Patient:nope'],
    ['Patient', '_include=Patient:name', '400 invalid Invalid include parameter: Patient:name'],
    ['Patient', '_include:x=*', '400 invalid Invalid modifier :x for _include'],
    ['Patient', '_list=$current-problems', '400 not-supported Functional lists are not supported'],
    ['Patient', '_filter=name', '400 invalid Invalid _filter: name'],
    ['Patient', '_filter=name eq', '400 invalid Invalid _filter: name eq'],
    ['Patient', '_filter=(name eq x', '400 invalid Invalid _filter: (name eq x'],
    ['Patient', '_filter=name xx y', '400 invalid Invalid operator: xx'],
    ['Patient', '_filter=name gt y', '400 invalid Invalid operator: gt for name'],
    ['Patient', '_filter=nmae eq y', '400 invalid Unknown search parameter: nmae'],
    ['Patient', '_filter=nmae gt y', '400 invalid Unknown search parameter: nmae'],
    [
      'Patient',
      '_filter=_has:Observation:patient:code gt y',
      '400 invalid Invalid operator: gt for _has:Observation:patient:code',
    ],
    ['Patient', '_filter=_list gt x', '400 invalid Invalid operator: gt for _list'],
    ['Patient', '_filter=_list pr true', '400 invalid Invalid modifier :missing for _list'],
    ['Patient', '_filter=_list ne $x', '400 not-supported Functional lists are not supported'],
    [
      'Observation',
      '_filter=subject._type ne Patient',
      '400 invalid Invalid operator: ne for subject._type',
    ],
    ['Observation', '_filter=subject._type eq Patient', 'accepted'],
    [
      'Task',
      `_filter=${'subject.'.repeat(30)}nope eq x`,
      '400 too-costly Search chains longer than three links are not currently supported',
    ],
    [
      'Patient',
      `_filter=${'('.repeat(20)}name eq y${')'.repeat(20)}`,
      '400 too-costly _filter may be 16 levels deep',
    ],
    [
      'Patient',
      `_filter=name eq y${' or name eq y'.repeat(64)}`,
      '400 too-costly _filter may have 64 comparisons',
    ],
    ['Observation', 'code-value-quantity=a$b', '400 invalid Invalid number value: b'],
    [
      'Observation',
      'code-value-quantity=a',
      '400 invalid code-value-quantity needs 2 values joined by $, not a',
    ],
    [
      'Observation',
      'code-value-quantity=s|$5',
      '400 invalid code-value-quantity needs a code in s|$5; any code of a system is not searched for in composites',
    ],
    [
      'Location',
      'near=91|0',
      '400 invalid Invalid value of near: 91|0; use latitude|longitude|distance|unit',
    ],
    [
      'Patient',
      'identifier:of-type=s|c',
      '400 invalid Invalid value of :of-type: s|c; use system|code|value',
    ],
    [
      'Patient',
      'gender:contains=m',
      '400 invalid Invalid modifier :contains for individual-gender',
    ],
  ]
  for (const [type, query, expected] of cases) {
    t.equal(refusal(type, query), expected, `${type}?${query.slice(0, 40)}`)
  }
})

t.test(
  'ignores unknown parameters under lenient handling but rejects invalid modifiers',
  async (t) => {
    const request = parseSearch('Patient', 'nmae=x&name=eve', { handling: 'lenient' })
    t.same(request.ignored, [{ name: 'nmae', value: 'x', text: 'Unknown search parameter: nmae' }])
    t.equal(request.conditions.length, 1)
    t.match(refusal('Patient', 'name:foo=x', 'lenient'), /Invalid modifier/)
    t.match(refusal('Patient', '_sort=nope', 'lenient'), /Unknown search parameter/)
    const chains = 'subject.subject.subject.nope=x&'.repeat(5)
    t.match(refusal('Task', chains, 'lenient'), /too-costly The chains of a search may lead to/)
  },
)

t.test('accepts a type, an identifier and missing on references', async (t) => {
  t.same(
    conditions(
      'Observation',
      'subject:Patient=1&performer:identifier=s|1&encounter:missing=true',
    ).map(({ code, modifier, values }) => [code, modifier, values]),
    [
      ['subject', 'Patient', ['1']],
      ['performer', 'identifier', ['s|1']],
      ['encounter', 'missing', ['true']],
    ],
  )
  t.equal(
    refusal('Observation', 'subject:Nope=1'),
    '400 invalid Invalid modifier :Nope for Observation-subject',
  )
  const subject = searchParameter('Observation', 'subject')
  t.ok(subject)
  if (!subject) return
  t.same(parseReferenceValue(subject, 'Patient', '1'), ['Patient/1'])
  t.same(parseReferenceValue(subject, undefined, 'Patient/1/_history/3'), ['Patient/1'])
  t.same(parseReferenceValue(subject, undefined, '1'), [
    'Device/1',
    'Group/1',
    'Location/1',
    'Patient/1',
    '1',
  ])
})

t.test('memberships are found by the type of their profile', async (t) => {
  t.same(conditions('ProjectMembership', 'profile-type:not=ClientApplication,Bot'), [
    { code: 'profile-type', type: 'token', modifier: 'not', values: ['ClientApplication', 'Bot'] },
  ])
})

t.test('reads tokens with a system, without one and with any', async (t) => {
  t.same(parseTokenValue('c'), { system: undefined, code: 'c' })
  t.same(parseTokenValue('s|c'), { system: 's', code: 'c' })
  t.same(parseTokenValue('|c'), { system: '', code: 'c' })
  t.same(parseTokenValue('s|'), { system: 's', code: undefined })
  t.same(parseTokenValue('a\\|b'), { system: undefined, code: 'a|b' })
})

t.test('reads dates of any precision as half-open ranges', async (t) => {
  const range = (low: string, high: string) => ({ low: Date.parse(low), high: Date.parse(high) })
  const cases: readonly (readonly [string, string, string, string])[] = [
    ['2024', 'eq', '2024-01-01', '2025-01-01'],
    ['ge2024-02', 'ge', '2024-02-01', '2024-03-01'],
    ['sa2024-02-29', 'sa', '2024-02-29', '2024-03-01'],
    ['2024-05-01T10:00', 'eq', '2024-05-01T10:00Z', '2024-05-01T10:01Z'],
    ['2024-05-01T10:00:07', 'eq', '2024-05-01T10:00:07Z', '2024-05-01T10:00:08Z'],
    ['2024-05-01T10:00:07.12Z', 'eq', '2024-05-01T10:00:07.120Z', '2024-05-01T10:00:07.130Z'],
    ['lt2024-05-01T10:00:00+02:00', 'lt', '2024-05-01T08:00Z', '2024-05-01T08:00:01Z'],
    ['2024-05-01T10:00:00 02:00', 'eq', '2024-05-01T08:00Z', '2024-05-01T08:00:01Z'],
  ]
  for (const [text, prefix, low, high] of cases) {
    t.same(parseDateValue(text), { prefix, ...range(low, high) }, text)
  }
  for (const text of [
    '2023-02-29',
    '2024-13',
    '0000',
    '24',
    '2024-1-1',
    '2024-01-01T25:00Z',
    'xx2024',
  ]) {
    t.ok(
      isRefused(() => parseDateValue(text)),
      text,
    )
  }
  const now = Date.parse('2024-01-11')
  t.same(parseDateValue('ap2024-01-01', now), {
    prefix: 'ap',
    ...range('2023-12-31', '2024-01-03'),
  })
})

t.test('reads the precision of numbers from their digits', async (t) => {
  t.same(parseNumberValue('100'), { prefix: 'eq', value: 100, low: 99.5, high: 100.5 })
  t.same(parseNumberValue('100.00'), { prefix: 'eq', value: 100, low: 99.995, high: 100.005 })
  t.same(parseNumberValue('1e2'), { prefix: 'eq', value: 100, low: 95, high: 105 })
  t.same(parseNumberValue('1.0e2'), { prefix: 'eq', value: 100, low: 95, high: 105 })
  t.same(parseNumberValue('gt-5'), { prefix: 'gt', value: -5, low: -5.5, high: -4.5 })
  t.same(parseNumberValue('ap10'), { prefix: 'ap', value: 10, low: 9, high: 11 })
  for (const text of ['', 'x', '1e999', '0x10', '1,5', 'Infinity']) {
    t.ok(
      isRefused(() => parseNumberValue(text)),
      text,
    )
  }
})

t.test('reads quantities with a unit and system, a unit alone or none', async (t) => {
  t.match(parseQuantityValue('5.4'), { value: 5.4, system: undefined, code: undefined })
  t.match(parseQuantityValue('lt5.4|s|mg'), { prefix: 'lt', system: 's', code: 'mg' })
  t.match(parseQuantityValue('5.4||mg'), { system: undefined, code: 'mg' })
  t.ok(isRefused(() => parseQuantityValue('5|a|b|c')))
})

t.test('ignores case, accents and repeated blanks in strings', async (t) => {
  t.equal(normaliseString('  Éva  MÜLLER\u0000\n'), 'eva muller')
  t.equal(normaliseString('ﬁne'), 'fine')
  t.equal(normaliseString('x'.repeat(1_000_000)).length, 200)
})
