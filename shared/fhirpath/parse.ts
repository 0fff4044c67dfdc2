/** Parses the FHIRPath subset of published SearchParameters and invariants. */
export type Expression =
  | { readonly kind: 'member'; readonly of: Expression | undefined; readonly name: string }
  | {
      readonly kind: 'call'
      readonly of: Expression | undefined
      readonly name: string
      readonly args: readonly Expression[]
    }
  | { readonly kind: 'index'; readonly of: Expression; readonly index: number }
  | {
      readonly kind: 'type'
      readonly op: 'as' | 'is'
      readonly of: Expression
      readonly type: string
    }
  | {
      readonly kind: 'binary'
      readonly op: BinaryOperator
      readonly left: Expression
      readonly right: Expression
    }
  | { readonly kind: 'union'; readonly parts: readonly Expression[] }
  | { readonly kind: 'literal'; readonly value: string | number | boolean }
  /** `$this` is named `this`, `%resource` is `resource`. */
  | { readonly kind: 'variable'; readonly name: string }

export type Call = Extract<Expression, { kind: 'call' }>
export type Binary = Extract<Expression, { kind: 'binary' }>

type BinaryOperator =
  | (typeof EQUALITY)[number]
  | (typeof INEQUALITY)[number]
  | (typeof MEMBERSHIP)[number]
  | (typeof ADDITIVE)[number]
  | 'and'
  | 'or'
  | 'xor'
  | 'implies'

const EQUALITY = ['=', '!='] as const
const INEQUALITY = ['<=', '>=', '<', '>'] as const
const MEMBERSHIP = ['in', 'contains'] as const
const ADDITIVE = ['+', '&'] as const

const TOKEN =
  /\s*(?:('(?:[^'\\]|\\.)*')|(\d+(?:\.\d+)?)|([%$]?[A-Za-z_]\w*|`[^`]+`)|([!<>]=|[<>+&|=().,[\]]))/y

/** Throws an Error with the expression when it is outside the subset. */
export function parsePath(text: string): Expression {
  const parser = new Parser(text)
  const expression = parser.implies()
  parser.end()
  return expression
}

export function memberPath(expression: Expression): readonly string[] | undefined {
  if (expression.kind !== 'member') return undefined
  if (expression.of === undefined) return [expression.name]
  const path = memberPath(expression.of)
  return path && [...path, expression.name]
}

class Parser {
  readonly #text: string
  readonly #tokens: string[] = []
  #at = 0

  constructor(text: string) {
    this.#text = text
    TOKEN.lastIndex = 0
    const trimmed = text.trim()
    while (TOKEN.lastIndex < trimmed.length) {
      const found = TOKEN.exec(trimmed)
      if (!found) this.#fail()
      this.#tokens.push(found[0].trim())
    }
  }

  end(): void {
    if (this.#at < this.#tokens.length) this.#fail()
  }

  implies(): Expression {
    return this.#binary(['implies'], () => this.#or())
  }

  #or(): Expression {
    return this.#binary(['or', 'xor'], () => this.#and())
  }

  #and(): Expression {
    return this.#binary(['and'], () => this.#membership())
  }

  #membership(): Expression {
    return this.#binary(MEMBERSHIP, () => this.#equality())
  }

  #equality(): Expression {
    return this.#binary(EQUALITY, () => this.#inequality())
  }

  #inequality(): Expression {
    return this.#binary(INEQUALITY, () => this.#union())
  }

  #binary(operators: readonly BinaryOperator[], operand: () => Expression): Expression {
    let left = operand()
    for (;;) {
      const op = operators.find((name) => this.#take(name))
      if (op === undefined) return left
      left = { kind: 'binary', op, left, right: operand() }
    }
  }

  #union(): Expression {
    const first = this.#typed()
    const parts = [first]
    while (this.#take('|')) parts.push(this.#typed())
    return parts.length === 1 ? first : { kind: 'union', parts }
  }

  #typed(): Expression {
    const of = this.#binary(ADDITIVE, () => this.#chain())
    for (const op of ['as', 'is'] as const) {
      if (this.#take(op)) return { kind: 'type', op, of, type: this.#name() }
    }
    return of
  }

  #chain(): Expression {
    let value = this.#primary()
    for (;;) {
      if (this.#take('.')) value = this.#invocation(value)
      else if (this.#take('[')) {
        const index = Number(this.#next())
        if (!Number.isInteger(index)) this.#fail()
        this.#expect(']')
        value = { kind: 'index', of: value, index }
      } else return value
    }
  }

  #primary(): Expression {
    if (this.#take('(')) {
      const inner = this.implies()
      this.#expect(')')
      return inner
    }
    const token = this.#peek() ?? ''
    if (token.startsWith("'")) {
      this.#at++
      return { kind: 'literal', value: token.slice(1, -1).replace(/\\(.)/g, '$1') }
    }
    if (/^\d/.test(token)) return { kind: 'literal', value: Number(this.#next()) }
    if (token === 'true' || token === 'false') {
      return { kind: 'literal', value: this.#next() === 'true' }
    }
    if (/^[%$]/.test(token)) return { kind: 'variable', name: this.#next().slice(1) }
    return this.#invocation(undefined)
  }

  #invocation(of: Expression | undefined): Expression {
    const name = this.#name()
    if (!this.#take('(')) return { kind: 'member', of, name }
    const args: Expression[] = []
    while (!this.#take(')')) {
      if (args.length > 0) this.#expect(',')
      args.push(this.implies())
    }
    return { kind: 'call', of, name, args }
  }

  #name(): string {
    const token = this.#next()
    if (!/^[A-Za-z_`]/.test(token)) this.#fail()
    return token.replace(/`/g, '')
  }

  #peek(): string | undefined {
    return this.#tokens[this.#at]
  }

  #next(): string {
    return this.#tokens[this.#at++] ?? this.#fail()
  }

  #take(token: string): boolean {
    if (this.#peek() !== token) return false
    this.#at++
    return true
  }

  #expect(token: string): void {
    if (!this.#take(token)) this.#fail()
  }

  #fail(): never {
    throw new Error(`Outside the subset of FHIRPath: ${this.#text}`)
  }
}
