/**
 * graphql-js walks every field of every type when a schema is made, which here takes a second and a
 * hundred megabytes. So types show no fields until the gate is open, and the schema makes those that a
 * query names when it names them.
 */
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

/** By the map that they are described in: what a search takes is the same wherever it hangs. */
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
      // Else it would name the field that it was first made for.
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

/** Knows every type by name; `getTypeMap` has only those of its making until all are made. */
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

  /** All types with their fields; waits for `pace` after each. */
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

/** A list of items that are never null; one for each type. */
export function listOfType<T extends GraphQLNullableType>(type: T): GraphQLList<GraphQLNonNull<T>> {
  // Made below for this very type.
  const known = lists.get(type) as GraphQLList<GraphQLNonNull<T>> | undefined
  if (known !== undefined) return known
  const made = new GraphQLList(new GraphQLNonNull(type))
  lists.set(type, made)
  return made
}

const lists = new WeakMap<object, object>()

/** `seen`: arguments that are not to be looked at again. */
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
