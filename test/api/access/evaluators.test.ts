/**
 * Random criteria: the SQL evaluator and the content evaluator make the same decision on live rows. Imports both
 * evaluators, between which no request chooses.
 */
import t from 'tap'
import { parseCriteria } from '../../../shared/access/criteria.ts'
import { decideContents } from '../../../shared/access/decisions/decide.ts'
import { decideLiveRows } from '../../../shared/access/decisions/decide-in-sql.ts'
import { compileGrant, createTypeScope } from '../../../shared/access/decisions/grant-predicates.ts'
import { plainGrant } from '../../../shared/access/grant.ts'
import { typeNumber } from '../../../shared/fhir/definitions.ts'
import { type VersionRow, versionColumns } from '../../../shared/store/rows/rows.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { caseCount, pickRandom, seeded } from '../../fixtures/policy/oracle.ts'
import { anObservation, anOrganization, aPatient } from '../../fixtures/resources.ts'
import { openTestStore } from '../../fixtures/store/store.ts'

const SEED = Number(process.env.TEST_SEED ?? 20_261_128)
const CRITERIA = caseCount(400)
const RESOURCES = 30
const UCUM = 'http://unitsofmeasure.org'
const PREFIXES = ['', 'eq', 'ne', 'gt', 'lt', 'ge', 'le', 'sa', 'eb', 'ap']

const random = seeded(SEED)
const one = <T>(...values: readonly T[]): T => pickRandom(random, values)
const { database, repository, aMember } = await openTestStore(t)
const store = repository.withStore((opened) => opened)
const member = await aMember({}, { units: ['kg', 'g', '[lb_av]'] })

const create = async (resource: Resource) => {
  const { type, id } = await repository.create(member, resource)
  return `${type}/${id}`
}
const organizations = [await create(anOrganization()), await create(anOrganization({ name: 'B' }))]
const patients = await Promise.all(Array.from({ length: RESOURCES }, () => create(randomPatient())))
const observations = await Promise.all(
  Array.from({ length: RESOURCES }, () => create(randomObservation())),
)

function randomPatient(): Resource {
  const organization = random(3) === 0 ? {} : { managingOrganization: reference(...organizations) }
  return aPatient({
    active: one(true, false),
    name: [
      { family: one('Müller', 'Muller-Lee', 'Abel'), given: [one('Ann Marie', 'Bob')] },
      ...(random(2) ? [{ text: one('Bob the Great', 'O’Neil') }] : []),
    ],
    gender: one('male', 'female'),
    birthDate: one('1960', '1960-05', '1960-05-06', '1999-12-31'),
    identifier: [{ system: one('urn:a', 'urn:b'), value: one('1', '2') }],
    ...organization,
  })
}

function randomObservation(): Resource {
  const values = [
    { valueString: one('small', 'large') },
    ...['kg', 'g', '[lb_av]'].map((code) => ({
      valueQuantity: { value: one(5, 5000, 11.5), unit: code, system: UCUM, code },
    })),
    { valueQuantity: { value: 5, unit: 'kg' } },
  ]
  return anObservation(one(...patients), {
    status: one('final', 'amended'),
    code: {
      coding: [{ system: one('urn:c', 'urn:d'), code: one('x', 'y'), display: 'Weight now' }],
    },
    effectiveDateTime: one(
      '2024',
      '2024-05-06',
      '2024-05-06T07:08:09Z',
      '2025-01-01T00:00:00+02:00',
    ),
    ...one(...values),
  })
}

function reference(...targets: readonly string[]) {
  return { reference: one(...targets) }
}

function randomCriterion(type: string): string {
  const date = () =>
    `${one(...PREFIXES)}${one('1960', '1960-05-06', '2024', '2024-05-06T07:08:09Z')}`
  const name = () => one('mul', 'Müller', 'bob great', 'ann', 'neil', 'zz')
  const common = () =>
    one(
      `_lastUpdated=${one('gt', 'lt')}2020-01-01`,
      `_id=${one(...(type === 'Patient' ? patients : observations)).split('/')[1]}`,
      `_compartment=${one(...patients)}`,
      `_tag:missing=${one('true', 'false')}`,
    )
  const ofPatient = () =>
    one(
      `gender${one('', ':not')}=${one('male', 'female', 'other')}`,
      `identifier=${one('urn:a|1', '|1', '2', 'urn:b|')}`,
      `${one('name', 'family', 'given')}${one('', ':exact', ':contains')}=${name()}`,
      `birthdate=${date()}`,
      `organization${one('', ':not')}=${one(...organizations)}`,
      `organization.name=${one('Good', 'B')}`,
      `${one('organization', 'name', 'birthdate', 'gender')}:missing=${one('true', 'false')}`,
      `_has:Observation:subject:status=${one('final', 'amended')}`,
      `_filter=gender eq ${one('male', 'female')} ${one('and', 'or')} name co "${one('bob', 'mull')}"`,
      `_filter=not (birthdate ${one('gt', 'le')} 1960-06)`,
    )
  const ofObservation = () =>
    one(
      `status${one('', ':not')}=${one('final', 'amended,final')}`,
      `code${one('', ':not')}=${one('urn:c|x', 'x', 'urn:d|', '|y')}`,
      `code:text=${one('weight', 'now', 'none')}`,
      `subject=${one(...patients)}`,
      `subject:Patient.gender=${one('male', 'female')}`,
      `subject:Patient.organization=${one(...organizations)}`,
      `date=${date()}`,
      `value-quantity=${one(...PREFIXES)}${one('5', '5000', '11')}${one('', `|${UCUM}|kg`, `|${UCUM}|g`, '||kg')}`,
      `value-quantity:missing=${one('true', 'false')}`,
      `value-string${one('', ':contains', ':exact')}=${one('small', 'all', 'large')}`,
      `code-value-quantity=urn:c|x$${one(...PREFIXES)}5`,
      `_filter=status eq final ${one('and', 'or')} not (code eq x)`,
    )
  if (random(6) === 0) return common()
  return type === 'Patient' ? ofPatient() : ofObservation()
}

const buildRows = (type: string, names: readonly string[]) =>
  database.query<VersionRow>({
    text: `select ${versionColumns('v')} from version v
      where v.project = $1 and v.type = $2 and v.id = any($3::uuid[])`,
    values: [member.project.number, typeNumber(type), names.map((name) => name.split('/')[1])],
  })

t.test(
  `decides ${CRITERIA} random criteria alike in both evaluators (TEST_SEED=${SEED})`,
  async (t) => {
    const rows = new Map([
      ['Patient', await buildRows('Patient', patients)],
      ['Observation', await buildRows('Observation', observations)],
    ])
    const counts = { memory: 0, mixed: 0, sql: 0, seen: 0, hidden: 0 }
    for (let round = 0; round < CRITERIA; round++) {
      const type = one('Patient', 'Observation')
      const said = Array.from({ length: 1 + random(2) }, () => randomCriterion(type)).join('&')
      const variables = { projectId: undefined, values: new Map() }
      const criteria = parseCriteria(type, `${type}?${said}`, variables)
      const grant = { ...plainGrant(type, ['read'], said), criteria }
      const principal = { ...member, rules: { grants: [grant] } }
      const own = rows.get(type) ?? []
      const { project } = member
      const scope = createTypeScope(store.keys, principal, type, project.number)
      const { matches, left } = compileGrant(scope, grant)

      const question = { principal, type, project: project.number, asked: ['read'] } as const
      const live = await decideLiveRows(
        store,
        question,
        own.map(({ id }) => id),
      )
      const contents = await decideContents(store, principal, ['read'], own)
      // A content has no rows in side tables, so predicates on those deny it.
      const isDenied = matches === undefined && left === undefined
      const byRow = own.map((_, i) => live[i]?.read !== undefined)
      const byContent = own.map((_, i) => contents[i]?.read !== undefined)
      const expected = byRow.map((isSeen) => isSeen && !isDenied)
      t.same(byContent, expected, `${type}?${said}`)
      for (const isSeen of byRow) counts[isSeen ? 'seen' : 'hidden'] += 1
      counts[matches !== undefined ? 'memory' : left !== undefined ? 'mixed' : 'sql'] += 1
    }
    t.ok(
      Object.values(counts).every((count) => count > 10),
      JSON.stringify(counts),
    )
  },
)
