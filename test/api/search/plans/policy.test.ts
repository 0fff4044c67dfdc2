/**
 * Searches under a policy with prepared plans: results and access paths are right however many rows it allows.
 * Imports the planner, to force each access path.
 */
import t from 'tap'
import { parseCriteria } from '../../../../shared/access/criteria.ts'
import { visibleRows, withVisible } from '../../../../shared/access/decisions/grant-predicates.ts'
import { plainGrant } from '../../../../shared/access/grant.ts'
import type { Principal } from '../../../../shared/access/principal.ts'
import { typeNumber } from '../../../../shared/fhir/definitions.ts'
import { arrayLiteral } from '../../../../shared/postgres/statement.ts'
import { parseSearch } from '../../../../shared/search/language/search.ts'
import { ACCESS_PATHS } from '../../../../shared/search/planner/access-paths.ts'
import { pageStatement } from '../../../../shared/search/planner/page-statement.ts'
import { isRare, planQuery } from '../../../../shared/search/planner/prepare.ts'
import { compilePredicate } from '../../../../shared/search/predicates/compile.ts'
import { resolveOrder } from '../../../../shared/search/predicates/order.ts'
import type { PlannedQuery, SortedRow } from '../../../../shared/search/predicates/query.ts'
import { until } from '../../../fixtures/botica.ts'
import { countStatements } from '../../../fixtures/store/store.ts'
import { openPlannedStore } from './planned-store.ts'
import { keptBuffers, ownBuffers } from './plans.ts'

const ROWS = 20_000
const PATIENTS = 1000
/** The newest rows are all about men. */
const OF_MEN = 700
const READY_MS = 60_000

const { database, repository, member, project, keys, statistics } = await openPlannedStore(t)

const patients = Array.from({ length: PATIENTS }, (_, n) => `Patient/p${n}`)
const param = (type: string, code: string) => keys.param(project, type, code)
const token = (type: string, code: string, value: string) =>
  keys.token(param(type, code), undefined, value)
const held = {
  // Patients 0 to 2 are inactive; the odd ones are men.
  self: patients.map((name) => param('Patient', '_self') ^ keys.target(project, name)),
  gender: patients.map((_, n) => token('Patient', 'gender', n % 2 ? 'male' : 'female')),
  active: patients.map((_, n) => token('Patient', 'active', String(n > 2))),
  subject: patients.map((name) =>
    keys.reference(param('Observation', 'subject'), keys.target(project, name)),
  ),
}
await database.query({
  text: `insert into resource (project, type, id, ver, lu, nref, keys)
    select $1, $2, gen_random_uuid(), 1, timestamptz '2023-01-01' + n * interval '1 second', 1,
      array[($3::bigint[])[n], ($4::bigint[])[n], ($5::bigint[])[n]]
    from generate_series(1, $6::int) n`,
  values: [
    project,
    typeNumber('Patient'),
    ...[held.self, held.gender, held.active].map(arrayLiteral),
    PATIENTS,
  ],
})
await database.query({
  text: `insert into resource (project, type, id, ver, lu, d_lo, d_hi, nref, keys)
    select $1, $2, gen_random_uuid(), 1, timestamptz '2024-01-01' + n * interval '1 second', at, at, 2,
      array[n, ($3::bigint[])[1 + case when n > $7 - $8 then n % 500 * 2 + 1 else n * 7919 % $4 end],
        case n % 7 when 0 then $5::bigint else $6::bigint end]
    from generate_series(1, $7::int) n,
      lateral (select timestamptz '2020-01-01' + n * 7919 % 20000 * interval '1 hour') d(at)`,
  values: [
    project,
    typeNumber('Observation'),
    arrayLiteral(held.subject),
    PATIENTS,
    token('Observation', 'status', 'amended'),
    token('Observation', 'status', 'final'),
    ROWS,
    OF_MEN,
  ],
})
await database.query({
  text: `insert into idx_string (project, type, p, v, id)
    select project, type, $1, 'family' || row_number() over (order by lu) % 40, id from resource where type = $2`,
  values: [param('Patient', 'family'), typeNumber('Patient')],
})
await database.query({
  text: `insert into version (project, type, id, ver, lu, content, meta_at, meta_ext)
    select project, type, id, ver, lu, '{}', 1, '' from resource where project = $1`,
  values: [project],
})
await database.query({ text: 'vacuum analyze resource, version, idx_string', values: [] })
await statistics.refresh()

function limitedTo(...criteria: readonly string[]): Principal {
  const grants = criteria.map((text) => {
    const type = text.slice(0, text.indexOf('?'))
    const parsed = parseCriteria(type, text, { projectId: undefined, values: new Map() })
    return { ...plainGrant(type, ['search'], 'test'), criteria: parsed }
  })
  return { ...member, rules: { grants } }
}

function planned(principal: Principal, search: string): PlannedQuery {
  const [type = '', parameters = ''] = search.split('?')
  const request = parseSearch(type, parameters)
  const scope = visibleRows({ keys }, principal, type, { interaction: 'search' })
  if (scope === undefined) throw new Error(`${type} is not in sight`)
  const predicates = request.conditions.map((condition) => compilePredicate(scope, condition))
  const limit = request.count + 1
  const query = {
    project,
    typeNumbers: [typeNumber(type)],
    predicates: withVisible(scope.visible, predicates, (predicate) =>
      isRare({ statistics }, scope, predicate, limit),
    ),
    order: resolveOrder(request, keys),
    after: undefined,
    limit,
    offset: 0,
  }
  return planQuery({ statistics }, query)
}

/** Criteria of one shape that allow almost all rows, half, almost none and none. */
const OBSERVATIONS = ['active=true', 'gender=female', 'active=false', 'gender=unknown'].map(
  (criterion) => limitedTo(`Observation?status=final&subject:Patient.${criterion}`),
)
const OF_PATIENTS = [
  ['gender=female&active:not=false', 'gender=male'],
  ['gender=unknown&active:not=false', 'gender=male'],
  ['gender=female&active:not=true', 'gender=unknown'],
].map((entries) => limitedTo(...entries.map((entry) => `Patient?${entry}`)))
const [all, half, , nothing] = OBSERVATIONS as [Principal, Principal, Principal, Principal]

const ids = (type: string, count: number) =>
  database.query<{ id: string }>({
    text: 'select id from resource where project = $1 and type = $2 order by lu limit $3',
    values: [project, typeNumber(type), count],
  })
const [observed, known] = await Promise.all(
  ['Observation', 'Patient'].map(async (type) => (await ids(type, 3)).map(({ id }) => id).join()),
)
const SEARCHES: readonly (readonly [search: string, principals: readonly Principal[]])[] = [
  ['Observation?subject=Patient/p6', OBSERVATIONS],
  ['Observation?subject=Patient/p2&_sort=-date', OBSERVATIONS],
  ['Observation?subject=Patient/p2,Patient/p9&status:not=amended&_sort=date', OBSERVATIONS],
  [`Observation?_id=${observed}`, OBSERVATIONS],
  ['Patient?family=family7', OF_PATIENTS],
  [`Patient?_id=${known}`, OF_PATIENTS],
]
const WALKED = ['_sort=_lastUpdated', 'status=final&_sort=_lastUpdated', '_sort=date'].map(
  (search) => `Observation?${search}`,
)

/** Walks all rows of the type. */
function walked({ query, stats }: PlannedQuery): PlannedQuery {
  const accessPath = ACCESS_PATHS.find(({ name }) => name === 'walk')
  if (accessPath === undefined) throw new Error('There is no walk')
  return { query, stats: { ...stats, rows: 0 }, accessPath }
}

const queryIds = async (part: PlannedQuery) =>
  (await database.query<SortedRow>(pageStatement([part]))).map(({ id }) => id)

t.test('finds the allowed rows in order, however many there are', async (t) => {
  const counts = new Set<number>()
  for (const [search, principals] of SEARCHES) {
    for (const principal of principals) {
      const part = planned(principal, search)
      const found = await queryIds(part)
      counts.add(found.length)
      t.same(found, await queryIds(walked(part)), search)
    }
  }
  t.ok(counts.has(0) && counts.size > 4, 'some find all, some none')
  for (const search of WALKED) {
    for (const principal of OBSERVATIONS) {
      const part = planned(principal, search)
      t.same(await queryIds(part), await queryIds(walked(part)), search)
    }
  }
})

t.test('reads few extra pages when policies share a plan', async (t) => {
  const searches = [...SEARCHES, ...WALKED.map((search) => [search, [all, half]] as const)]
  for (const asked of searches) {
    const [search, principals] = asked
    const plans = principals.map((principal) => planned(principal, search))
    const statements = plans.map((part) => pageStatement([part]))
    t.ok(statements.every(({ isPreparable }) => isPreparable))
    t.equal(new Set(statements.map(({ text }) => text)).size, 1, search)
    await database.transaction(async (connection) => {
      const own: number[] = []
      for (const statement of statements) own.push(await ownBuffers(connection, statement))
      // PostgreSQL compares the generic plan with the first custom plans.
      for (const places of [[...plans.keys()], [...plans.keys()].reverse()]) {
        for (const place of places) {
          const statement = statements[place] ?? { text: '', values: [] }
          const name = `${searches.indexOf(asked)} from ${places[0]}`
          const kept = (await keptBuffers(connection, name, statement)) ?? Number.NaN
          const most = (own[place] ?? 0) * 2 + 10
          t.ok(kept <= most, `${kept} instead of ${own[place]}: ${statement.text}`)
        }
      }
    })
  }
})

t.test('stops a walk when the page is full', async (t) => {
  for (const search of ['', 'status=final']) {
    const statement = pageStatement([planned(all, `Observation?${search}&_sort=_lastUpdated`)])
    const pages = await ownBuffers(database, statement)
    t.ok(pages < 300, `${pages} pages: ${search}`)
  }
})

t.test('reads a page with one statement, even if the newest rows are hidden', async (t) => {
  const request = parseSearch('Observation', '_sort=-_lastUpdated&_count=20')
  const page = async () => {
    t.equal((await repository.search(half, request)).versions.length, 20)
  }
  // The first search also reads the statistics.
  await until(async () => (await countStatements(database, page)) === 1, READY_MS)
})

t.test('looks up the sources of few allowed targets directly', (t) => {
  const planName = (principal: Principal, search: string) =>
    planned(principal, search).accessPath.name
  t.equal(planName(nothing, 'Observation?'), 'join')
  t.equal(planName(nothing, 'Observation?status=final'), 'join')
  t.equal(planName(half, 'Observation?value-quantity=5'), 'ids')
  const byText = limitedTo('Observation?subject:Patient.family:contains=ily7')
  t.equal(planName(byText, 'Observation?subject=Patient/p6'), 'keys', 'a text may contain anything')
  t.end()
})

t.test('finds the union of the lists of several references', async (t) => {
  const request = parseSearch('Observation', '_count=5&_sort=-date')
  const references = [2, 6, 7].map((n) => `Patient/p${n}`)
  for (const principal of OBSERVATIONS) {
    const asked = { request, code: 'subject', references }
    const lists = await repository.searchPerReference(principal, asked, 100)
    for (const [i, { versions }] of lists.entries()) {
      const alone = parseSearch('Observation', `_count=5&_sort=-date&subject=${references[i]}`)
      const found = await repository.search(principal, alone)
      t.same(
        versions.map(({ id }) => id),
        found.versions.map(({ id }) => id),
      )
    }
  }
})

const SPANS = [
  ['date=2020-03-05', '2020-03-05', '2020-03-06'],
  ['date=2020', '2020-01-01', '2021-01-01'],
  ['date=lt2021-03', '2000-01-01', '2021-03-01'],
  ['date=2031', '2031-01-01', '2032-01-01'],
] as const

t.test('finds dates by one plan together with conditions on each row', async (t) => {
  const final = token('Observation', 'status', 'final')
  const kept = new Set<boolean | undefined>()
  for (const criteria of [['status=final'], ['status:not=amended'], ['status=final', 'status=x']]) {
    const principal = limitedTo(...criteria.map((one) => `Observation?${one}`))
    for (const [search, from, to] of SPANS) {
      const part = planned(principal, `Observation?${search}`)
      t.equal(part.accessPath.name, 'dates', search)
      kept.add(pageStatement([part]).isPreparable)
      const expected = await database.query<SortedRow>({
        text: `select id from resource where project = $1 and type = $2 and d_lo >= $3 and d_lo <= $4
          and keys[3] = $5 order by lu desc, id desc limit 21`,
        values: [project, typeNumber('Observation'), `${from}Z`, `${to}Z`, final.toString()],
      })
      t.same(
        await queryIds(part),
        expected.map(({ id }) => id),
        `${criteria} ${search}`,
      )
    }
  }
  t.same([...kept], [true])
  const rare = planned(
    limitedTo('Observation?status=final'),
    'Observation?date=2020&subject=Patient/p6',
  )
  t.equal(rare.accessPath.name, 'keys', 'fewer rows have the key')
})
