/**
 * Provenance that may go with an export of what has been listed: that of which a target is on the list, found
 * by the index of references. Whether it does go is judged when it is read (provenance.ts).
 */
import type { Principal } from '../../../access/principal.ts'
import { storedParameters, typeName, typeNumber } from '../../../fhir/definitions.ts'
import type { Connection } from '../../../platform/postgres/statement.ts'
import type { Store } from '../../../store/rows/context.ts'
import { binder } from '../../../store/rows/side-rows.ts'
import { listingSql } from '../rows/list.ts'

const PROVENANCE = typeNumber('Provenance')

/** False when there is none that could be exported. One statement. */
export async function hasProvenance(
  connection: Connection,
  { project }: Principal,
  at: Date,
): Promise<boolean> {
  const [found] = await connection.query<{ isAny: boolean }>({
    name: 'export-has-provenance',
    text: `select exists (select 1 from resource where project = $1 and type = $2)
      or exists (select 1 from version where project = $1 and type = $2 and lu > $3) as "isAny"`,
    values: [project.number, PROVENANCE, at],
  })
  return found?.isAny === true
}

/** Of arrays of the list that are gone through by a statement. */
const ARRAYS = 16

/** Answers how many there are, about. */
export async function listProvenance(
  store: Store,
  principal: Principal,
  job: string,
  at: Date,
): Promise<number> {
  const { connection } = store
  const [list] = await connection.query<{ arrays: number; types: number[] }>({
    text: `select count(*)::int as arrays, coalesce(array_agg(distinct type), '{}') as types
      from export_list where job = $1 and type <> $2`,
    values: [job, PROVENANCE],
  })
  const { arrays = 0, types = [] } = list ?? {}
  let areThere = true
  for (let from = 0; from < arrays && areThere; from += ARRAYS) {
    areThere = await listAbout(store, principal, job, types, at, from)
  }
  await listChanged(connection, principal, job, at, areThere)
  const [found] = await connection.query<{ rows: number }>({
    text: `select coalesce(sum(cardinality(ids)), 0)::int as rows
      from export_list where job = $1 and type = $2`,
    values: [job, PROVENANCE],
  })
  return found?.rows ?? 0
}

/**
 * Each row's first key is its own, and that of a reference to it differs by what is the same for all of a
 * type. False when a row of the list is not there any more: nobody knows what refers to it.
 */
async function listAbout(
  { connection, keys }: Store,
  { project }: Principal,
  job: string,
  types: readonly number[],
  at: Date,
  from: number,
): Promise<boolean> {
  const [code = 'target'] = storedParameters('Provenance', 'target')
  const parameter = keys.param(project.number, 'Provenance', code)
  const own = types.map((type) => parameter ^ keys.param(project.number, typeName(type), '_self'))
  const { values, bind } = binder()
  const [number, provenance] = [bind(project.number, 'int'), bind(PROVENANCE, 'smallint')]
  const id = bind(job, 'uuid')
  const found = `select p.type, p.id, p.ver
    from (select array_agg(key) as some from k where key is not null group by n / 50) g
    cross join lateral (select r.type, r.id, r.ver from resource r
      where r.keys && g.some and (r.project = ${number}) is true and (r.type = ${provenance}) is true
        and r.lu <= ${bind(at, 'timestamptz')} offset 0) p`
  const rows = await connection.query({
    text: `with l as (select type, ids from export_list where job = ${id} and type <> ${provenance}
          order by type, low, high offset ${bind(from, 'int')} limit ${ARRAYS}),
        k as materialized (select r.keys[1] # t.own as key, row_number() over () as n
          from l cross join lateral unnest(l.ids) x(id)
          join unnest(${bind(types, 'smallint[]')}, ${bind(`{${own.join(',')}}`, 'bigint[]')})
            t(type, own) on t.type = l.type
          left join resource r on r.project = ${number} and r.type = l.type and r.id = x.id),
        w as (${listingSql(id, found)})
      select 1 from k where key is null limit 1`,
    values,
  })
  return rows.length === 0
}

/** What was changed after the time of the export: nobody knows what it was about, until it is read. */
async function listChanged(
  connection: Connection,
  { project }: Principal,
  job: string,
  at: Date,
  alone: boolean,
): Promise<void> {
  const { values, bind } = binder()
  const [number, provenance] = [bind(project.number, 'int'), bind(PROVENANCE, 'smallint')]
  const time = bind(at, 'timestamptz')
  const changed = `select v.type, v.id, v.ver from version v where v.project = ${number}
    and v.type = ${provenance} and v.lu > ${time} and v.ver > 1`
  const all = `select r.type, r.id, r.ver from resource r
    where r.project = ${number} and r.type = ${provenance}`
  const rows = alone ? changed : `${changed} union all ${all}`
  await connection.query({ text: listingSql(bind(job, 'uuid'), rows), values })
}
