/**
 * Creates that are prepared before the check for free ids. Imports the prepared creates, to hold them before their
 * check.
 */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import type { Principal } from '../../../shared/access/principal.ts'
import { parseSearch } from '../../../shared/search/language/search.ts'
import { PlannedCreates } from '../../../shared/store/write/planned-rows.ts'
import {
  allowing,
  countRoundTrips,
  countStatements,
  failureStatus,
  openTestStore,
  system,
} from '../../fixtures/store/store.ts'

const { database, repository, aMember } = await openTestStore(t, { autoDownload: true })
const member = await aMember()

const aPatient = (mrn: string, extra: Record<string, unknown> = {}) => ({
  resourceType: 'Patient',
  id: randomUUID(),
  identifier: [{ system: 'urn:mrn', value: mrn }],
  name: [{ family: 'Planned' }],
  birthDate: '1970-01-01',
  ...extra,
})
const anObservation = (patient: string) => ({
  resourceType: 'Observation',
  id: randomUUID(),
  status: 'final',
  code: { coding: [{ system: 'http://loinc.org', code: '8302-2' }] },
  subject: { reference: `Patient/${patient}` },
  valueQuantity: { value: 180, unit: 'cm' },
})
const findIds = async (principal: Principal, query: string, type = 'Patient') => {
  const { versions } = await repository.search(principal, parseSearch(type, query))
  return versions.map(({ id }) => id).sort()
}

async function planned(
  principal: Principal,
  resources: readonly ReturnType<typeof aPatient>[] | readonly ReturnType<typeof anObservation>[],
): Promise<PlannedCreates> {
  const plans = new PlannedCreates()
  for (const resource of resources) {
    const isPlanned = await repository.planCreate(principal, resource, plans)
    if (!isPlanned) throw new Error('The resource was not planned')
  }
  return plans
}

const UNDONE = { message: 'Not all were written' }
const TAKEN = { code: '23505' }

const carryOut = (principal: Principal, ...given: readonly PlannedCreates[]) =>
  repository.transaction(async (transaction) => {
    for (const plans of given) {
      if (!(await transaction.createPlanned(principal, plans))) throw new Error(UNDONE.message)
    }
  })

t.test('writes many creates with one statement, and finds them', async (t) => {
  const mrn = randomUUID()
  const given = Array.from({ length: 40 }, () => aPatient(mrn))

  const plans = await planned(member, given)
  const cost = await countStatements(database, () => carryOut(member, plans))

  t.equal(cost, 3, 'begin, the writes, commit')
  const ids = given.map(({ id }) => id).sort()
  for (const query of ['name=planned', `birthdate=1970-01-01`, `identifier=urn:mrn|${mrn}`]) {
    t.same(await findIds(member, `${query}&_count=100`), ids, query)
  }
  const [plain = aPatient(mrn)] = given
  const twin = await repository.create(member, plain)
  const read = await repository.read(member, 'Patient', plain.id)
  const withoutId = ({ content = '' }: typeof read) =>
    content.replace(/"id":"[^"]*"/, '').replace(/"lastUpdated":"[^"]*"/, '')
  t.equal(withoutId(read), withoutId(twin), 'the stored text is that of a create')
})

t.test('prepares creates without waiting', async (t) => {
  const plans = await planned(member, [aPatient(randomUUID()), aPatient(randomUUID())])
  t.equal(await countRoundTrips(database, () => carryOut(member, plans)), 2)
})

t.test('rolls back all creates on a taken id', async (t) => {
  const mrn = randomUUID()
  const [one, taken] = [aPatient(mrn), aPatient(mrn)]
  const plans = await planned(member, [one, taken])
  await repository.create(member, taken, { keepId: true })

  await t.rejects(carryOut(member, plans), TAKEN)

  t.same(await findIds(member, `identifier=urn:mrn|${mrn}`), [taken.id])
})

t.test('rolls back all creates on the id of a deleted resource', async (t) => {
  const gone = aPatient(randomUUID())
  const plans = await planned(member, [gone])
  await repository.create(member, gone, { keepId: true })
  await repository.delete(member, 'Patient', gone.id)

  await t.rejects(carryOut(member, plans), TAKEN)

  t.equal(await failureStatus(repository.read(member, 'Patient', gone.id)), 410)
})

t.test('checks references after all creates if the Project requires it', async (t) => {
  const strict = await aMember({}, { checkReferencesOnWrite: true })
  const patient = aPatient(randomUUID())
  const good = anObservation(patient.id)
  const mine = await planned(strict, [patient])
  const theirs = await planned(strict, [good])
  const missing = await planned(strict, [anObservation(randomUUID())])

  t.equal(await failureStatus(carryOut(strict, mine, missing)), 400)
  await carryOut(strict, theirs, mine)

  t.match(await repository.read(strict, 'Observation', good.id), { ver: 1 })
})

t.test('leaves resources with inherited accounts to a plain create', async (t) => {
  const owner = await aMember({ isProjectAdmin: true })
  const meta = { accounts: [{ reference: 'Organization/a' }] }
  const holder = aPatient(randomUUID(), { meta })
  const observation = anObservation(holder.id)
  const plans = await planned(owner, [observation])
  await repository.create(owner, holder, { keepId: true })

  await t.rejects(carryOut(owner, plans), UNDONE)
  await repository.create(owner, observation, { keepId: true })

  t.notOk(await repository.planCreate(owner, anObservation(holder.id), new PlannedCreates()))
  t.same(await findIds(owner, '_compartment=Organization/a', 'Observation'), [observation.id])
})

t.test('rejects rows of outdated search parameters', async (t) => {
  const patient = aPatient(randomUUID())
  const plans = await planned(member, [patient])
  const changed = { stamp: 'other', types: new Map() }
  const later = { ...member, project: { ...member.project, parameters: changed } }

  await t.rejects(carryOut(later, plans), UNDONE)

  t.equal(await failureStatus(repository.read(member, 'Patient', patient.id)), 404)
})

t.test('writes words, wide content and attachments in the same statement', async (t) => {
  const parameters = { stamp: 'words', types: new Map(), fullText: 'ready' } as const
  const own = await aMember({}, { parameters })
  const mrn = randomUUID()
  const url = 'https://example.com/photo'
  const given = [
    aPatient(mrn, { name: [{ family: 'Müller "\\ 😀', given: ['A', 'A', ' a'] }] }),
    aPatient(mrn, { photo: [{ url }], birthDate: undefined }),
    aPatient(mrn, { text: { status: 'generated', div: '<div>Narrative words</div>' } }),
  ]

  await carryOut(own, await planned(own, given))

  const counted = await database.query({
    text: `select
        (select count(*)::int from resource_text where project = $1
          and narrative @@ 'narrative') as narratives,
        (select count(*)::int from resource_text where project = $1 and content @@ 'words') as words,
        (select count(*)::int from job where project = $1 and kind = 'download') as downloads,
        (select count(*)::int from resource where project = $1 and d_lo is null) as undated`,
    values: [own.project.number],
  })
  t.same(counted, [{ narratives: 1, words: 1, downloads: 1, undated: 1 }])
  t.same(await findIds(own, 'name=müller'), [given[0]?.id])
  for (const { id } of given) {
    const { content = '' } = await repository.read(own, 'Patient', id)
    t.match(JSON.parse(content), { id, identifier: [{ value: mrn }], meta: { versionId: '1' } })
  }
})

t.test('requires one type and author', async (t) => {
  const plans = await planned(member, [aPatient(randomUUID())])
  const other = { ...member, profile: `Practitioner/${randomUUID()}` }

  t.notOk(await repository.planCreate(member, anObservation(randomUUID()), plans))
  t.notOk(await repository.planCreate(other, aPatient(randomUUID()), plans))

  t.equal(plans.rows.length, 1)
  await carryOut(member, plans)
})

t.test('reuses their memory for the next creates', async (t) => {
  const mrn = randomUUID()
  const plans = new PlannedCreates()
  const all: string[] = []
  for (const count of [300, 2, 1]) {
    const given = Array.from({ length: count }, () => aPatient(mrn))
    for (const patient of given) await repository.planCreate(member, patient, plans)
    await carryOut(member, plans)
    plans.clear()
    all.push(...given.map(({ id }) => id))
  }
  t.same(await findIds(member, `identifier=urn:mrn|${mrn}&_count=500`), all.sort())
})

t.test('leaves members with stored-state policies to the plain write', async (t) => {
  const limited = await aMember({ rules: allowing({ Patient: ['create', 'read'] }) })
  t.notOk(await repository.planCreate(limited, aPatient(randomUUID()), new PlannedCreates()))
  t.notOk(await repository.planCreate(system, aPatient(randomUUID()), new PlannedCreates()))
  const reader = await aMember({ rules: allowing({ Patient: ['read'] }) })
  t.notOk(await repository.planCreate(reader, aPatient(randomUUID()), new PlannedCreates()))
})
