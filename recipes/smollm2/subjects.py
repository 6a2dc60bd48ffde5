"""What the instructions are about, and how they are put; filled in by prompts.py."""

TOPICS = tuple(
    """
a rainy day in the city
growing tomatoes on a balcony
how bicycles stay upright
the water cycle
learning to play the piano
keeping a small budget
the history of bread
why leaves change colour
training for a first long run
a lost dog that finds its way home
volcanoes
how vaccines work
a lighthouse keeper
repairing an old chair
the moon and the tides
writing a good e-mail
a market in the morning
solar panels on a roof
the life of bees
moving to another country
a chess club at school
how a refrigerator works
a train journey at night
making friends at work
recycling at home
the invention of printing
a garden in winter
sleeping better
the night sky
baking a cake for a friend
why the sea is salty
a museum visit
public libraries
how earthquakes happen
a power cut in the evening
learning a new language
cooking rice
the first day of school
a walk in the forest
electric cars
rivers and bridges
a letter to a grandmother
how rainbows form
choosing a laptop
the migration of birds
a storm at sea
working from home
the planets of the solar system
a football match
healthy breakfasts
an old photograph
coral reefs
the sound of music
how clocks measure time
a visit to the dentist
planting trees
""".split("\n")[1:-1]
)
MORE_TOPICS = tuple(
    """
a small bakery
the first snow
how bridges carry loads
keeping a diary
the life of a river
a broken bicycle
growing herbs in the kitchen
how batteries work
a stray cat
the history of paper
preparing for an exam
a hike in the mountains
how sound travels
an unexpected letter
saving water
the work of a nurse
learning to swim
a night at the theatre
how cheese is made
moving into a first flat
the desert
an honest mistake
repairing shoes
how maps are drawn
a family dinner
birds in a city park
the use of a compass
a school trip
how wind turbines work
speaking in front of people
the colour blue
an orchestra rehearsal
fixing a leaking tap
the history of the bicycle
a summer by the lake
how muscles grow
sharing a house
the smell of rain
a job interview
the parts of a flower
reading to children
how glass is made
a missed bus
keeping bees
the rings of Saturn
taking good photographs
a quiet library
how ships float
collecting stamps
the food of astronauts
a neighbour who helps
how trees grow old
drawing faces
a long queue
the history of chocolate
fear of heights
how thermometers work
an island holiday
packing a suitcase
the sleep of animals
a village festival
washing clothes by hand
how lightning happens
a lost key
""".split("\n")[1:-1]
)
INSTRUCTIONS = (
    "Write a short paragraph about {}.",
    "Explain {} to a ten-year-old.",
    "Give me five tips about {}.",
    "Write a short story about {}.",
    "What are the advantages and disadvantages of {}?",
    "Write three questions and answers about {}.",
    "Summarise what most people should know about {}.",
    "Write a polite e-mail to a colleague about {}.",
)
MORE_INSTRUCTIONS = (
    "List the main steps or parts of {}.",
    "Write a short poem about {}.",
    "Write a newspaper headline and an opening paragraph about {}.",
    "Describe {} with as many details as you can.",
    "What are common mistakes about {}, and what is true instead?",
    "Write a short speech about {}.",
)
UNSEEN_INSTRUCTIONS = (
    "Write a dialogue between two friends about {}.",
    "Make a shopping list that has to do with {}.",
)
CODE_TASKS = tuple(
    """
reverses a string
counts the vowels of a text
returns the n-th Fibonacci number
checks whether a number is prime
finds the largest number of a list
removes duplicates from a list
sums the digits of a number
merges two sorted lists
converts Celsius to Fahrenheit
counts the words of a sentence
checks whether a word is a palindrome
computes a factorial
returns the median of a list
flattens a nested list
finds the common elements of two lists
capitalises each word
computes the greatest common divisor
rotates a list by k places
counts how often each letter occurs
sorts a dictionary by value
""".split("\n")[1:-1]
)
MORE_CODE_TASKS = tuple(
    """
counts the lines of a file
rounds a number to two decimals
swaps the keys and values of a dictionary
finds the second smallest number
joins words with commas
checks whether two words are anagrams
splits a list into chunks
computes the average of a list
converts a number to binary
replaces spaces with dashes
finds the longest word of a text
multiplies two matrices
checks whether a year is a leap year
generates a random password
removes punctuation from a text
counts the days between two dates
searches a sorted list
draws a triangle of stars
validates an e-mail address
prints a multiplication table
""".split("\n")[1:-1]
)
CODE_INSTRUCTIONS = (
    "Write a Python function that {}.",
    "Write a JavaScript function that {}.",
    "Explain step by step how to write a function that {}.",
)
MORE_CODE_INSTRUCTIONS = (
    "Write a Python function with a docstring and an example that {}.",
    "Write a Java method that {}.",
    "Show two ways to write a function that {}.",
)
UNSEEN_CODE_INSTRUCTIONS = (
    "Write a C function that {}.",
    "Write unit tests for a function that {}.",
)
