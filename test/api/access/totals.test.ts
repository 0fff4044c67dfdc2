/**
 * Totals under a policy count visible rows only, although PostgreSQL's statistics cover all rows. Imports the
 * parsers of criteria and searches, to count on a repository.
 */
import t from 'tap'
import { parseCriteria } from '../../../shared/access/criteria.ts'
import { plainGrant } from '../../../shared/access/grant.ts'
import type { Principal } from '../../../shared/access/principal.ts'
import { parseSearch } from '../../../shared/search/language/search.ts'
import { until } from '../../fixtures/botica.ts'
import { anObservation, aPatient, aPractitioner } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'
import { openTestStore } from '../../fixtures/store/store.ts'

/** More than the limit of exact counts without a policy. */
const SEEN = 10_050
const UNSEEN = 3_000
const READY_MS = 60_000

process.env.DATABASE_URL = await createDatabase(t)
const { database, repository, aMember } = await openTestStore(t)
const member = await aMember()
const criteria = parseCriteria('Patient', 'Patient?active:not=true', {
  projectId: undefined,
  values: new Map(),
})
const grant = { ...plainGrant('Patient', ['search'], 'test'), criteria }
const limited = { ...member, rules: { grants: [grant] } }

/** Inserts this many copies of the rows of this Patient. */
async function copy(id: string, count: number): Promise<void> {
  await database.query({
    text: `insert into resource (project, type, id, ver, lu, nref, d_lo, d_hi, keys)
      select project, type, gen_random_uuid(), ver, lu, nref, d_lo, d_hi, keys
      from resource, generate_series(2, $2::int) where id = $1::uuid`,
    values: [id, count],
  })
}

async function totalFor(principal: Principal, total: string): Promise<number | undefined> {
  const query = `gender=female&_count=0&_total=${total}`
  return (await repository.search(principal, parseSearch('Patient', query))).total
}

t.test('reveals no hidden rows by an estimate', async (t) => {
  const [seen, unseen] = await Promise.all(
    [false, true].map((active) =>
      repository.create(member, aPatient({ gender: 'female', active })),
    ),
  )
  await copy(seen?.id ?? '', SEEN)
  await copy(unseen?.id ?? '', UNSEEN)
  await database.query({ text: 'vacuum analyze resource', values: [] })
  // The first count is remembered.
  const all = SEEN + UNSEEN
  await until(async () => Number(await totalFor(member, 'estimate')) > SEEN + 100, READY_MS)
  t.equal(await totalFor(member, 'accurate'), all)
  t.equal(await totalFor(limited, 'accurate'), SEEN)
  t.equal(await totalFor(limited, 'estimate'), SEEN)
})

/** References are indexed by position, all after the first few together. */
const OTHERS = [0, 1, 2, 3, 9]

t.test('counts a row for a target at any position among its references', async (t) => {
  const chained = parseCriteria('Observation', 'Observation?performer:Practitioner.active=true', {
    projectId: undefined,
    values: new Map(),
  })
  const rules = {
    grants: [{ ...plainGrant('Observation', ['search'], 'test'), criteria: chained }],
  }
  const [subject, seen, ...unseen] = await Promise.all([
    repository.create(member, aPatient()),
    repository.create(member, aPractitioner({ active: true })),
    ...Array.from({ length: 9 }, () => repository.create(member, aPractitioner({ active: false }))),
  ])
  const performedBy = (ids: readonly string[]) =>
    repository.create(
      member,
      anObservation(`Patient/${subject?.id}`, {
        performer: ids.map((id) => ({ reference: `Practitioner/${id}` })),
      }),
    )
  const hidden = unseen.map(({ id }) => id)
  await Promise.all(
    OTHERS.flatMap((count) => {
      const others = hidden.slice(0, count)
      return [performedBy([...others, seen?.id ?? '']), performedBy(others)]
    }),
  )
  const counted = async (principal: Principal, query: string) =>
    (await repository.search(principal, parseSearch('Observation', `${query}&_total=accurate`)))
      .total
  t.equal(await counted(member, 'status=final'), 2 * OTHERS.length)
  t.equal(await counted({ ...member, rules }, 'status=final'), OTHERS.length)
  t.equal(await counted({ ...member, rules }, 'status=amended'), 0)
})
