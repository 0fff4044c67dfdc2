/**
 * Random policies: each access path shows exactly the resources that the contract allows. Imports the compiler of
 * policies, to give a caller rules without a membership.
 */
import t from 'tap'
import { compilePolicies } from '../../../../shared/access/compile.ts'
import { policyVariables } from '../../../../shared/access/criteria.ts'
import type { Principal } from '../../../../shared/access/principal.ts'
import { openBotica } from '../../../fixtures/botica.ts'
import {
  caseCount,
  encodePolicyRule,
  governing,
  type Json,
  membersSeen,
  pickRandom,
  type Rule,
  randomRules,
  rulesFor,
  seeded,
  shows,
  worldIds,
} from '../../../fixtures/policy/oracle.ts'
import { asking } from '../../../fixtures/policy/policy.ts'

const POLICIES = caseCount(15)
const SEED = Number(process.env.TEST_SEED ?? 20_261_121)

const botica = await openBotica(t)
const { admin, services } = botica
const random = seeded(SEED)
const world = new Map<string, Json>()
const add = async (resource: Json) => {
  const made = await admin.create(resource)
  world.set(`${made.resourceType}/${made.id}`, made)
  return `${made.resourceType}/${made.id}`
}

const organizations = [
  await add({ resourceType: 'Organization', name: 'A' }),
  await add({ resourceType: 'Organization', name: 'B' }),
]
const patients: string[] = []
for (let i = 0; i < 8; i++) {
  const organization = i % 3 === 2 ? undefined : { reference: organizations[i % 3] }
  patients.push(
    await add({
      resourceType: 'Patient',
      name: [{ family: pickRandom(random, ['Abel', 'Adam', 'Berg']) }],
      gender: pickRandom(random, ['male', 'female']),
      birthDate: `${1950 + random(60)}-05-05`,
      identifier: [{ system: 'urn:same', value: String(i) }],
      ...(organization === undefined ? {} : { managingOrganization: organization }),
    }),
  )
}
for (let i = 0; i < 20; i++) {
  await add({
    resourceType: 'Observation',
    status: pickRandom(random, ['final', 'amended']),
    code: { coding: [{ system: 'urn:c', code: pickRandom(random, ['a', 'b', 'c']) }] },
    subject: { reference: pickRandom(random, patients) },
    valueString: 'x',
    identifier: [{ system: 'urn:same', value: String(i) }],
  })
}
const member = await botica.createMember()
const session = await services.principals.forProfile(`ClientApplication/${member.id}`)
if (session === undefined) throw new Error('The member has no session')

function principalUnder(rules: readonly Rule[]): Principal {
  const policy = {
    resourceType: 'AccessPolicy',
    id: 'random',
    resource: rules.map(encodePolicyRule),
  }
  const variables = policyVariables(botica.project.id, 'Practitioner/x', undefined, [])
  const compiled = compilePolicies([{ policy, variables }])
  if (compiled.warnings.length > 0) throw new Error(compiled.warnings.join())
  return { ...(session as { principal: Principal }).principal, rules: compiled.rules }
}

const ask = (principal: Principal, path: string) => asking(services, principal)('GET', path)

const namesIn = (body: Json, mode?: string): string[] =>
  (body.entry ?? [])
    .filter(({ search }: Json) => mode === undefined || search.mode === mode)
    .map(({ resource }: Json) => `${resource.resourceType}/${resource.id}`)
    .sort()

interface VisibleRows {
  readonly interaction: string
  readonly elements: readonly string[]
  readonly test: (json: Json) => boolean
}

/** Returns the visible resources whose governing rule shows every element that the search reads. */
function visible(
  rules: readonly Rule[],
  type: string,
  { interaction, elements, test }: VisibleRows,
): string[] {
  return worldIds(world, type)
    .filter((name) => {
      const json = world.get(name)
      const rule = governing(rules, interaction, json, world)
      return rule !== undefined && elements.every((element) => shows(rule, element)) && test(json)
    })
    .sort()
}

/** True when no entry that may govern a search of the type shows the elements. */
function isHidden(rules: readonly Rule[], type: string, elements: readonly string[]): boolean {
  const tried = rulesFor(rules, type, 'search')
  const plain = tried.findIndex(({ criteria }) => criteria.length === 0)
  const deciding = plain === -1 ? tried : tried.slice(0, plain + 1)
  return !deciding.some((rule) => elements.every((element) => shows(rule, element)))
}

const SEARCHES: readonly {
  query: string
  type: string
  elements: readonly string[]
  test: (json: Json) => boolean
}[] = [
  { query: 'Patient?_count=100', type: 'Patient', elements: [], test: () => true },
  { query: 'Observation?_count=100', type: 'Observation', elements: [], test: () => true },
  {
    query: 'Patient?gender=male',
    type: 'Patient',
    elements: ['gender'],
    test: (json) => json.gender === 'male',
  },
  {
    query: 'Patient?_sort=family&_count=100',
    type: 'Patient',
    elements: ['name'],
    test: () => true,
  },
  {
    query: 'Observation?status:not=final&_count=100',
    type: 'Observation',
    elements: ['status'],
    test: (json) => json.status !== 'final',
  },
  {
    query: 'Observation?_filter=code eq a or status eq "final"',
    type: 'Observation',
    elements: ['code', 'status'],
    test: (json) => json.code.coding[0].code === 'a' || json.status === 'final',
  },
  {
    query: 'Observation?identifier=urn:same|3,urn:same|4',
    type: 'Observation',
    elements: ['identifier'],
    test: (json) => ['3', '4'].includes(json.identifier[0].value),
  },
]

t.test(`applies ${POLICIES} random policies alike on every path (TEST_SEED=${SEED})`, async (t) => {
  for (let round = 0; round < POLICIES; round++) {
    const rules = randomRules(world, random)
    const principal = principalUnder(rules)
    const said = JSON.stringify(rules.map(encodePolicyRule))

    for (const [name, json] of world) {
      const rule = governing(rules, 'read', json, world)
      const mayRead = rulesFor(rules, json.resourceType, 'read').length > 0
      const found = await ask(principal, name)
      const status = rule !== undefined ? 200 : mayRead ? 404 : 403
      t.equal(found.status, status, `${name} of ${said}`)
      if (rule === undefined) continue
      t.same(Object.keys(found.body).sort(), membersSeen(rule, json), `${name} of ${said}`)
    }

    for (const { query, type, elements, test } of SEARCHES) {
      const found = await ask(principal, query)
      const maySearch = rulesFor(rules, type, 'search').length > 0
      if (!maySearch || isHidden(rules, type, elements)) {
        t.equal(found.status, 403, `${query} of ${said}`)
        continue
      }
      const expected = visible(rules, type, { interaction: 'search', elements, test })
      t.same(namesIn(found.body, 'match'), expected, `${query} of ${said}`)
      const counted = await ask(principal, `${query}&_summary=count`)
      t.equal(counted.body.total, expected.length, `total of ${query} of ${said}`)
    }

    await checkJoins(t, rules, principal, said)
    await checkHistories(t, rules, principal, said)
  }
})

async function checkJoins(
  t: Pick<typeof import('tap').default, 'same' | 'equal'>,
  rules: readonly Rule[],
  principal: Principal,
  said: string,
): Promise<void> {
  if (rulesFor(rules, 'Observation', 'search').length === 0) return
  const page = await ask(principal, 'Observation?_include=Observation:subject&_count=100')
  const included = namesIn(page.body, 'match')
    .map((name) => world.get(name))
    .filter((json) => {
      const rule = governing(rules, 'search', json, world)
      return rule !== undefined && shows(rule, 'subject')
    })
    .map((json) => json.subject.reference)
    .filter((name) => governing(rules, 'read', world.get(name), world) !== undefined)
  t.same(namesIn(page.body, 'include'), [...new Set(included)].sort(), `_include of ${said}`)

  const chain = 'Observation?subject:Patient.gender=male&_count=100'
  const found = await ask(principal, chain)
  const maySearch = rulesFor(rules, 'Patient', 'search').length > 0
  const isTold =
    isHidden(rules, 'Observation', ['subject']) ||
    (maySearch && isHidden(rules, 'Patient', ['gender']))
  if (isTold) {
    t.equal(found.status, 403, `${chain} of ${said}`)
    return
  }
  const males = visible(rules, 'Patient', {
    interaction: 'search',
    elements: ['gender'],
    test: ({ gender }) => gender === 'male',
  })
  const expected = visible(rules, 'Observation', {
    interaction: 'search',
    elements: ['subject'],
    test: ({ subject }) => males.includes(subject.reference),
  })
  t.same(namesIn(found.body, 'match'), maySearch ? expected : [], `${chain} of ${said}`)
}

async function checkHistories(
  t: Pick<typeof import('tap').default, 'same' | 'equal'>,
  rules: readonly Rule[],
  principal: Principal,
  said: string,
): Promise<void> {
  const may = (interaction: string) => rulesFor(rules, 'Patient', interaction).length > 0
  const found = await ask(principal, 'Patient/_history')
  if (!may('read') || !may('history')) {
    t.equal(found.status, 403, `Patient/_history of ${said}`)
  } else {
    const seen = visible(rules, 'Patient', {
      interaction: 'read',
      elements: [],
      test: (json) => {
        return governing(rules, 'history', json, world) !== undefined
      },
    })
    t.same(namesIn(found.body), seen, `Patient/_history of ${said}`)
  }
  const patient = patients[0] ?? ''
  const all = await ask(principal, `${patient}/$everything?_count=100`)
  if (governing(rules, 'read', world.get(patient), world) === undefined) {
    t.equal(all.status, may('read') ? 404 : 403, `$everything of ${said}`)
    return
  }
  const seen = visible(rules, 'Observation', {
    interaction: 'read',
    elements: [],
    test: ({ subject }) => {
      return subject.reference === patient
    },
  })
  const answered = namesIn(all.body).filter((name) => name.startsWith('Observation/'))
  t.same(answered, seen, `$everything of ${said}`)
}
