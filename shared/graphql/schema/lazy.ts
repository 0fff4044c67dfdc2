/** Lazy schema: graphql-js would walk every field of every type at once. Types hide their fields until queried. */

import {
  type GraphQLArgument,
  type GraphQLFieldConfigMap,
  GraphQLInputObjectType,
  type GraphQLInputObjectTypeConfig,
  GraphQLList,
  type GraphQLNamedType,
  GraphQLNonNull,
  type GraphQLNullableType,
  GraphQLObjectType,
  GraphQLSchema,
  type GraphQLSchemaConfig,
  getNamedType,
  isInputObjectType,
  isObjectType,
  isUnionType,
} from 'graphql'
import { getOrInsert } from '../../core/cache.ts'
import { openOnce } from '../../fhir/definitions-data.ts'

export interface Gate {
  isOpen: boolean
}

type Configs = GraphQLFieldConfigMap<unknown, unknown>
type Fields = ReturnType<GraphQLObjectType<unknown, unknown>['getFields']>

interface LazyConfig {
  readonly name: string
  fields(): Configs
  describe?(): string | undefined
}

export class LazyObject extends GraphQLObjectType<unknown, unknown> {
  readonly #gate: Gate
  readonly #configs: () => Configs
  readonly #describe: LazyConfig['describe']
  #fields: Fields | undefined

  constructor(gate: Gate, { name, fields, describe }: LazyConfig) {
    const configs = openOnce(fields)
    super({ name, fields: () => withoutKnownArguments(configs()) })
    this.#gate = gate
    this.#configs = configs
    this.#describe = describe
  }

  override getFields(): Fields {
    if (!this.#gate.isOpen) return {}
    if (this.#fields !== undefined) return this.#fields
    this.description = this.#describe?.()
    this.#fields = withSharedArguments(super.getFields(), this.#configs())
    return this.#fields
  }
}

/** Keyed by their configuration map, so that fields share search arguments. */
const knownArguments = new WeakMap<object, readonly GraphQLArgument[]>()

function withoutKnownArguments(configs: Configs): Configs {
  const fields: Configs = {}
  for (const [name, config] of Object.entries(configs)) {
    const isKnown = config.args !== undefined && knownArguments.has(config.args)
    fields[name] = isKnown ? { ...config, args: {} } : config
  }
  return fields
}

function withSharedArguments(fields: Fields, configs: Configs): Fields {
  for (const [name, { args }] of Object.entries(configs)) {
    const field = fields[name]
    if (args === undefined || field === undefined) continue
    const known = knownArguments.get(args)
    if (known === undefined) {
      // Otherwise it would name the field it was first built for.
      for (const argument of field.args) argument.toString = () => argument.name
      knownArguments.set(args, field.args)
    } else field.args = known
  }
  return fields
}

export class LazyInput extends GraphQLInputObjectType {
  readonly #gate: Gate

  constructor(gate: Gate, config: GraphQLInputObjectTypeConfig) {
    super(config)
    this.#gate = gate
  }

  override getFields(): ReturnType<GraphQLInputObjectType['getFields']> {
    return this.#gate.isOpen ? super.getFields() : {}
  }
}

/** Knows all types by name; `getTypeMap` has only those built so far. */
export class LazySchema extends GraphQLSchema {
  readonly #find: (name: string) => GraphQLNamedType | undefined
  #whole: ReturnType<GraphQLSchema['getTypeMap']> | undefined

  constructor(
    config: Readonly<GraphQLSchemaConfig>,
    find: (name: string) => GraphQLNamedType | undefined,
  ) {
    super(config)
    this.#find = find
  }

  override getType(name: string): GraphQLNamedType | undefined {
    return super.getType(name) ?? this.#find(name)
  }

  override getTypeMap(): ReturnType<GraphQLSchema['getTypeMap']> {
    return this.#whole ?? super.getTypeMap()
  }

  /** Builds all types with their fields; awaits `pace` after each. */
  async makeAll(pace: () => Promise<void> | undefined): Promise<void> {
    if (this.#whole !== undefined) return
    const types = new Set<GraphQLNamedType>(Object.values(super.getTypeMap()))
    const seen = new Set<readonly GraphQLArgument[]>()
    for (const type of types) {
      for (const next of typesIn(type, seen)) types.add(next)
      const turn = pace()
      if (turn !== undefined) await turn
    }
    this.#whole = Object.fromEntries([...types].map((type) => [type.name, type]))
  }
}

export function listOfType<T extends GraphQLNullableType>(type: T): GraphQLList<GraphQLNonNull<T>> {
  const list = getOrInsert(lists, type, () => new GraphQLList(new GraphQLNonNull(type)))
  return list as GraphQLList<GraphQLNonNull<T>>
}

const lists = new WeakMap<object, object>()

/** `seen`: arguments to skip. */
function* typesIn(
  type: GraphQLNamedType,
  seen: Set<readonly GraphQLArgument[]>,
): Generator<GraphQLNamedType> {
  if (isUnionType(type)) yield* type.getTypes()
  if (isInputObjectType(type)) {
    for (const field of Object.values(type.getFields())) yield getNamedType(field.type)
  }
  if (!isObjectType(type)) return
  for (const field of Object.values(type.getFields())) {
    yield getNamedType(field.type)
    if (seen.has(field.args)) continue
    seen.add(field.args)
    for (const argument of field.args) yield getNamedType(argument.type)
  }
}
